"""TD3: a deterministic actor, moved every other update, and two critics."""
