"""Networks over the member axis: layers, Adam, distributions, and the complete policy."""
