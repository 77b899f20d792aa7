"""Bootstrap, intervals, deflated Sharpe ratio, overfitting, importance."""
