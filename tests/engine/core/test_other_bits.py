"""What may give other bits than at the beginning is said when a run goes on."""

from __future__ import annotations

import pytest

import slipstream
from slipstream.core.storage import provenance
from slipstream.training.callbacks.events import Updated
from slipstream.training.runs.run import Run


class BrokenOffError(Exception):
    pass


def break_off_now(event):
    raise BrokenOffError


def edited(**changes):
    facts = provenance.describe()
    for name, change in changes.items():
        facts[name] = {**facts[name], **change}
    return facts


NAMES = ("slipstream", "numba", "numpy", "optuna")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"versions": {"numba": "0.1"}}, "numba was 0.1 and is "),
        ({"versions": {"optuna": "4.9.1"}}, "optuna was 4.9.1 and is "),
        ({"machine": {"instruction_sets": ["avx9000"]}}, "instruction sets differ ("),
        ({"git": {"slipstream": {"commit": "0" * 40}}}, "commit was 000000000 and is "),
    ],
)
def test_each_difference_is_named(changes, words):
    told = provenance.reproducibility_warning(edited(**changes), "runs/one", NAMES)
    if "commit" in words and not (provenance.describe()["git"]["slipstream"] or {}).get("commit"):
        pytest.skip("not in a checkout")
    assert told.startswith("Since runs/one began: ") and words in told
    assert told.endswith("bits may differ from those of one that was never stopped.")


def test_what_decides_nothing_is_not_named():
    assert provenance.reproducibility_warning(edited(), "a", NAMES) == ""
    assert provenance.reproducibility_warning({}, "a", NAMES) == ""
    other = edited(versions={"optuna": "4.9", "polars": "0.1"})
    assert provenance.reproducibility_warning(other, "a", NAMES[:3]) == ""


def test_a_run_that_goes_on_says_it_once(tmp_path, capsys):
    def break_off(event):
        if isinstance(event, Updated) and event.progress.iterations == 3:
            raise BrokenOffError

    settings = {"num_envs": 8, "total_timesteps": 1_024, "report": False}
    settings["overrides"] = {"agent.n_steps": 32, "training.checkpoint_every": 0.25}
    with pytest.raises(BrokenOffError):
        slipstream.train("cartpole", out=tmp_path / "a", callbacks=[break_off], **settings)
    run = Run.open(tmp_path / "a")
    run.record(versions={**run.provenance["versions"], "numpy": "1.26.4"})
    for _ in range(2):
        with pytest.raises(BrokenOffError):
            slipstream.resume(tmp_path / "a", callbacks=[break_off_now])
        assert "numpy was 1.26.4 and is " in capsys.readouterr().err
    notes = [note for note in run.provenance["notes"] if "numpy was 1.26.4" in note]
    assert len(notes) == 1
    assert slipstream.resume(tmp_path / "a", report=False).result is not None
