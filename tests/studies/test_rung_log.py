"""What is said about rungs."""

from __future__ import annotations

from slipstream.studies.config import PruningConfig
from slipstream.studies.record.rows import Verdict
from slipstream.studies.search.rung_log import RungLog
from slipstream.studies.search.rungs import DISARMED

MILESTONES = (11, 22, 33)


def verdict(trial: int, stage: int, rho: float | None, kind: str = "continued") -> Verdict:
    armed = rho is not None and rho >= 0.5
    reason = "" if armed else f"{DISARMED}: ..."
    return Verdict(trial, stage, MILESTONES[stage], 0, kind, 1.0, rho=rho, reason=reason)


def test_a_change_is_said_once():
    said: list[str] = []
    log = RungLog(PruningConfig.model_validate({}), said.append)
    log.look(verdict(3, 0, None), MILESTONES)  # one of the first trials
    assert not said
    log.look(verdict(16, 0, None), MILESTONES)
    log.look(verdict(17, 0, 0.2), MILESTONES)
    log.look(verdict(18, 0, 0.7, "pruned"), MILESTONES)
    log.look(verdict(18, 2, 0.7, "complete"), MILESTONES)
    log.look(verdict(19, 0, 0.6), MILESTONES)
    log.look(verdict(20, 0, -0.1), MILESTONES)
    assert len(said) == 3
    assert "Trial 16: the rung at 33 %" in said[0] and "is disarmed" in said[0]
    assert "not known" in said[0]
    assert "stops trials from here on" in said[1] and "0.70" in said[1]
    assert "Trial 20" in said[2] and "-0.10" in said[2]


def test_nothing_is_said_without_pruning():
    said: list[str] = []
    log = RungLog(PruningConfig.model_validate({"enabled": False, "record": True}), said.append)
    log.look(verdict(30, 0, 0.1), MILESTONES)
    assert not said
