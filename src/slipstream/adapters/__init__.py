"""Faces: slipstream's copies as other libraries expect environments, and theirs as ours.

Nothing in slipstream imports this folder; each file is looked up by its name (docs/faces.md).
"""
