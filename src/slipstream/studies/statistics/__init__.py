"""Statistics of a study: bootstrap, intervals, deflated Sharpe ratio, overfitting."""
