"""Measurements beside peers: `slipstream bench env|train`."""
