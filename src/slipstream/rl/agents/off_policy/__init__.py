"""What agents that learn from a replay share: settings, schedules, target copies."""
