"""Markets: prices, trading environments and paper accounts."""
