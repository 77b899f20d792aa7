"""Commands of markets, which the command line adds to its own."""
