"""Shared parts of off-policy agents: settings, schedules and target networks."""
