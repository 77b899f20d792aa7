"""Self-play: one player learns, the other uses frozen weights or built-in rules."""
