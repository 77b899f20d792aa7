"""Prices: loading, checking, calendars, splits and markets with a known optimum."""
