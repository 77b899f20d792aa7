"""Soft actor-critic over the member axis, in loops that are compiled."""
