"""Training and scoring of the members of many trials: segments, backtests and the pool."""
