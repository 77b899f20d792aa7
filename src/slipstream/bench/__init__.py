"""Measurements beside peers: `slipstream bench SUITE`."""
