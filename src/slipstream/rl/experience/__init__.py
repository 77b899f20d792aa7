"""Experience: rollouts, and the pure mathematics on them."""
