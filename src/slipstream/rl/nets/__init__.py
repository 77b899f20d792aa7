"""Networks over the member axis: layers, products, Adam, distributions, and the complete policy."""
