"""Evaluation of policies in markets: backtests, performance, oracle and the hold-out register."""
