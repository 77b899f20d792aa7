"""Beside loops that are compiled whole: `python -m benchmarks loops`; YAML says all about it."""
