"""Calls and config files of older systems. No other package imports this one."""
