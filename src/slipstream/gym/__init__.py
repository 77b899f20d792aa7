"""Environments of other people: Gymnasium's, vector environments, objects of a program."""
