"""What has ended stands in Optuna's storage before the next phase, and after an error."""

import optuna
import pytest
from study_world import SkilledPool, run_study

from slipstream.studies import study
from slipstream.studies.record.ledger import Ledger
from slipstream.studies.record.storage import Mirror, open_storage, storage_url


class _CrashError(Exception):
    """Of no kind that a study expects."""


def _states(folder):
    storage = open_storage(storage_url(None, folder))
    found = optuna.load_study(study_name=folder.name, storage=storage).trials
    return {trial.number: trial.state.name for trial in found}


def test_before_the_confirmation(tmp_path, monkeypatch):
    folder, seen = tmp_path / "one", []

    def look(*_):
        seen.append(_states(folder))
        raise _CrashError

    monkeypatch.setattr(study, "confirm_best", look)
    with pytest.raises(_CrashError):
        run_study(folder, trials=4, steps=128)
    assert len(seen[0]) == 4 and "RUNNING" not in seen[0].values()


def test_after_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(Mirror, "pause", 3600.0)
    collect = SkilledPool.collect

    def until_the_budget_is_half_spent(self, timeout):
        if len(self.trained) > 120:
            raise _CrashError
        return collect(self, timeout)

    monkeypatch.setattr(SkilledPool, "collect", until_the_budget_is_half_spent)
    folder = tmp_path / "two"
    with pytest.raises(_CrashError):
        run_study(folder, trials=40, steps=128, study={"trials_in_flight": 4})
    with Ledger(folder / "ledger.db", read_only=True) as ledger:
        ended = {one.trial for one in ledger.verdicts() if one.kind != "continued"}
    finished = {trial for trial, state in _states(folder).items() if state != "RUNNING"}
    assert ended == finished and 0 < len(ended) < 40
