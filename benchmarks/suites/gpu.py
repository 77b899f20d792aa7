"""Torch implementations on a GPU: `python -m benchmarks gpu`; declared by YAML alone."""
