"""Forex: one symbol's position a copy, on real bars with spread, rollover and exits."""
