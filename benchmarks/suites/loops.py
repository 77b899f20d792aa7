"""Fully compiled training loops as peers: `python -m benchmarks loops`; declared by YAML alone."""
