"""slipstream's side of the benchmarks; each function is called in its own process."""
