"""Calls and files of older systems. Nothing else imports this package."""
