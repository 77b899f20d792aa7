"""Search of a study: forecast, session, sampler, pruner and scheduler in virtual time."""
