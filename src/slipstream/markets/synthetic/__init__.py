"""Planted markets: prices with an edge whose best return is known."""
