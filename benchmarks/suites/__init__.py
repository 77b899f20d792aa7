"""What `python -m benchmarks SUITE` measures: a YAML file a suite, and code where data will not do.

YAML lists the cases: what their rows say, what they are to reach, and what both sides are asked.
"""

SUITES = ("env", "train", "agents", "study", "hockey", "vector", "loops", "dash", "gpu")
