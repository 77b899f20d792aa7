"""What `python -m benchmarks SUITE` measures: one file a suite, one function a case."""

SUITES = ("env", "train", "agents", "study", "hockey", "vector")
