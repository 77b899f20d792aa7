"""The dashboard: `python -m benchmarks dash`."""
