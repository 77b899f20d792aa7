"""Causal, unscaled features of bars, by name."""
