"""What is said about rungs."""

from __future__ import annotations

from fake_pool import plan

from slipstream.settings.config import resolve
from slipstream.studies.config import PruningConfig
from slipstream.studies.record.ledger import Verdict
from slipstream.studies.search.judge import DISARMED, RungLog
from slipstream.studies.search.plan import Stages

MILESTONES = (11, 22, 33)
STAGES = Stages(MILESTONES, (110, 220, 330), (1 / 3, 2 / 3))


def verdict(trial: int, stage: int, rho: float | None, kind: str = "continued") -> Verdict:
    armed = rho is not None and rho >= 0.5
    reason = "" if armed else f"{DISARMED}: ..."
    return Verdict(trial, stage, MILESTONES[stage], 0, kind, 1.0, rho=rho, reason=reason)


def test_a_change_is_said_once():
    said: list[str] = []
    log = RungLog(PruningConfig.model_validate({}), said.append)
    log.look(verdict(3, 0, None), STAGES)  # one of the first trials
    assert not said
    log.look(verdict(16, 0, None), STAGES)
    log.look(verdict(17, 0, 0.2), STAGES)
    log.look(verdict(18, 0, 0.7, "pruned"), STAGES)
    log.look(verdict(18, 2, 0.7, "complete"), STAGES)
    log.look(verdict(19, 0, 0.6), STAGES)
    log.look(verdict(20, 0, -0.1), STAGES)
    assert len(said) == 3
    assert "Trial 16: the rung at 33 %" in said[0] and "is disarmed" in said[0]
    assert "not known" in said[0]
    assert "stops trials from here on" in said[1] and "0.70" in said[1]
    assert "Trial 20" in said[2] and "-0.10" in said[2]


def test_nothing_is_said_without_pruning():
    said: list[str] = []
    log = RungLog(PruningConfig.model_validate({"enabled": False, "record": True}), said.append)
    log.look(verdict(30, 0, 0.1), STAGES)
    assert not said


def test_a_rung_is_called_by_its_share_and_told_where_it_lies_instead():
    """The issue's case: four rollouts; the console said 50 and 75 %, the page 33 and 67 %."""
    said: list[str] = []
    log = RungLog(PruningConfig.model_validate({}), said.append)
    stages = plan(pruning={"startup": 0}).stages(
        resolve(plan().base, {"training.total_steps": 256})
    )
    assert stages.shares == (1 / 3, 2 / 3) and stages.milestones == (2, 3, 4)
    log.look(Verdict(16, 0, 2, 0, "continued", 1.0, rho=0.7), stages)
    assert "the rung at 33 % (in whole rollouts 50 %) of the budget stops" in said[0]
