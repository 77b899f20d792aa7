"""Agents: policies and the algorithms that improve them, everything with a leading member axis."""
