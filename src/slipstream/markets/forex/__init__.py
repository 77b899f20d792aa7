"""Forex: one position in one symbol per environment, on real bars with spread, swaps and exits."""
