"""Agents that learn from a replay, beside their peers: `slipstream bench agents`."""

from __future__ import annotations

from slipstream.bench.suite import Case
from slipstream.bench.suites import dqn, replay_scores, sac

CASES: dict[str, Case] = {
    **dqn.CASES,
    **sac.CASES,
    **replay_scores.CASES,
}
