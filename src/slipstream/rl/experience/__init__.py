"""Experience: rollouts, replay and normalization."""
