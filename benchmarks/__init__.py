"""Measurements beside peers: `python -m benchmarks SUITE`, from a checkout; in no wheel."""
