"""CLI commands of markets."""
