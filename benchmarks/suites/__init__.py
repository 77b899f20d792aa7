"""Suites of `python -m benchmarks SUITE`: a YAML file each, and code for cases that need it.

YAML lists the cases: the texts of their rows, their goals, and the arguments of both sides.
"""

SUITES = ("env", "train", "agents", "study", "hockey", "vector", "loops", "dash", "gpu")
