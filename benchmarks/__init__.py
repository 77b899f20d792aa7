"""Benchmarks against other libraries: `python -m benchmarks SUITE`. Not part of the wheel."""
