"""Policies beside a run, by the episode at which they were written."""

import contextlib
import itertools
import json

import numpy as np
import pytest

import slipstream
from slipstream.training.callbacks.events import Progress, Started, Updated
from slipstream.training.callbacks.metrics import PeriodicPolicies


def test_a_session_goes_on_counting_where_the_last_one_stopped(tmp_path):
    table = {
        "member": [0.0, 1.0, 0.0, 1.0],
        "episodes": [2.0, 9.0, 4.0, 12.0],
        "phase": [0.0, 1.0, 1.0, 1.0],
    }
    seen, values = PeriodicPolicies(tmp_path / "run", 3, 2, lambda: table), []
    seen(Started(Progress(budget=10, steps=4), 2, 4, 1, "compiled", "cpu", resumed=True))

    def told(episodes, finished=False):
        metrics = {"episodes": np.array([episodes]), "phase": np.array([1])}
        progress = Progress(budget=10, steps=10 if finished else 5)
        policy = values.append
        with contextlib.suppress(TypeError):  # what is asked for is no policy here
            seen(Updated(progress, (0,), metrics, policy=policy))

    told(5)
    assert not values  # 3 was passed before
    told(7)
    assert values == [0]
    told(8, finished=True)
    assert values == [0, 0]


class StruckError(Exception):
    """Interruption of a training."""


def test_any_run_writes_them_and_goes_on_with_them(tmp_path):
    """Beside the run, after the iteration past each multiple and at the end; resumed, too."""
    out, every = tmp_path / "models" / "one", 40

    def strike(event):
        if isinstance(event, Updated) and event.progress.fraction > 0.7:
            raise StruckError

    with pytest.raises(StruckError):
        slipstream.train(
            "cartpole", out=out, num_envs=4, total_timesteps=4_096, policy_every_episodes=every,
            callbacks=[strike], report=False, log=lambda _: None,
        )  # fmt: skip
    run = slipstream.resume(out, report=False)
    counts = [int(number) for number in run.metrics()["episodes"]]
    pairs = itertools.pairwise([0, *counts])
    due = [now for before, now in pairs if now // every > before // every]
    written = sorted(int(path.name[-6:]) for path in out.parent.glob("one_ep??????"))
    assert written == sorted({*due, counts[-1]}) and len(written) >= 2
    last = slipstream.load_policy(out.with_name(f"one_ep{counts[-1]:06d}"))
    assert last.act([0.0] * 4) in (0, 1)
    facts = json.loads(out.with_name(f"one_ep{written[0]:06d}_metadata.json").read_text())
    told = {"episode": written[0], "phase_index": 0, "phase_episode": written[0], "run": str(out)}
    assert facts == told
