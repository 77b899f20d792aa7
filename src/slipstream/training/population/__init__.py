"""How members of many trials are trained together and scored: stretches, passes, the pool."""
