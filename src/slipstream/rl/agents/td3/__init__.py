"""TD3: a deterministic actor with delayed updates, and two critics."""
