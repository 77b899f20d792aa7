"""Portfolio: several assets and cash on one time axis."""
