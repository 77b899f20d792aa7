"""The torch forms on a card: `python -m benchmarks gpu`; YAML says all about it."""
