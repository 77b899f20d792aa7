"""Forecast and session of a study; who is asked and judged when, in virtual time."""
