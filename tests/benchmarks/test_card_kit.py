"""Dry runs of the GPU kit on a CPU, and its handling of failed steps."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.card import steps
from benchmarks.card.__main__ import STEPS, run_steps
from benchmarks.card.pack import missing, pins
from slipstream.rl.agents.ppo import torch_ppo


@pytest.mark.slow
def test_failed_step_is_recorded_and_the_next_one_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"device": "cpu", "out": str(tmp_path)}
    run_steps(tmp_path, asked, {"no_such_step": 60, "machine": 60})
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("no_such_step (") and "FAILED: " in first and "no_such_step'" in first
    assert second.startswith("machine (") and "dry run on the CPU" in second
    kept = json.loads((tmp_path / "card.json").read_text())
    assert list(kept) == ["stamp", "no_such_step", "machine"]
    assert all(callable(getattr(steps, name)) for name in STEPS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="requires a machine without a GPU")
def test_minibatch_is_timed_and_graph_requires_a_gpu() -> None:
    answer = steps.minibatch("cpu", "", members=(1, 2), widths=(8,), seconds=0.01)
    one, two = answer["figures"]
    assert (one["members"], two["members"]) == (1, 2) and min(one["eager"], two["eager"]) > 0
    assert "graph" not in one and one["failed"]
    assert answer["told"].splitlines()[0].startswith("M=1 8x8: ")


@pytest.mark.slow
def test_envs_are_timed_in_halves_and_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_ppo, "_MIN_DOUBLE_BUFFERED_ENVS", 0)
    answer = steps.halves("cpu", "", num_envs=32, n_steps=8, seconds=0.0)
    assert [figure["copies"] for figure in answer["figures"]] == [32, 2]
    assert answer["told"].startswith("M=1 N=32: ") and min(answer["figures"][1].values()) > 0


@pytest.mark.slow
def test_the_agents_tests_run_on_a_device() -> None:
    answer = steps.tests("cpu", "", ["test_torch_draws"])
    assert "3 passed" in answer["told"]


@pytest.mark.slow
def test_a_run_is_killed_and_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    answer = steps.resume("cpu", str(tmp_path), 60_000)
    assert answer["killed"] and answer["gaps"] == [0.0, 0.0]


def test_what_the_machine_has_does_not_travel() -> None:
    wanted = pins(["# a lock", "polars==2.1.0", "Typing_Extensions==4.16.0", "numpy==2.4.6"])
    there = pins(["numpy==2.5.2", "typing-extensions==4.15.0  # elsewhere"])
    assert missing(wanted, there) == ["polars==2.1.0"]
