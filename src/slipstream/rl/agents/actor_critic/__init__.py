"""Shared parts of actor-critic agents with two critics: SAC and TD3."""
