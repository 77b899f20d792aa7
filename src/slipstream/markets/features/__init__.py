"""Causal, unscaled features of bars, selected by name."""
