"""Markets: prices, features, trading environments, their evaluation and live accounts."""
