"""Environments for training: creation from names, stepping and evaluation."""
