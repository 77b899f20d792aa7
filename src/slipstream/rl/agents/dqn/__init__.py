"""DQN over the member axis, double and dueling, in loops that are compiled."""
