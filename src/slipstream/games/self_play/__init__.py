"""Games of two: one seat learns, the other acts by frozen weights or rules of its own."""
