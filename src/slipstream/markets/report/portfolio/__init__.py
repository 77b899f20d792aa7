"""What a portfolio's page has of its own: one account of all assets, and its baselines."""
