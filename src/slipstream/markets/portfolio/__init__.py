"""Portfolio: several assets and cash on a common time axis."""
