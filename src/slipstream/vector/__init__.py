"""Many copies of one environment stepped together."""
