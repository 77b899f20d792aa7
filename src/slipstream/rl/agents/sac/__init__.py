"""Soft actor-critic of a whole population; compiled and torch implementations."""
