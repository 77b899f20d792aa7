"""What `slipstream bench SUITE` measures: one file a suite, one function a case."""
