"""DQN of a whole population, double and dueling; compiled and torch implementations."""
