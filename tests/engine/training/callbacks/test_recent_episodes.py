"""Means of the last training episodes, with the metrics of the environment."""

import io

import numpy as np
from gymnasium import spaces
from rich.console import Console

import slipstream
from slipstream.kernels.spec import EnvSpec, Metric
from slipstream.kernels.vector_env import Episodes
from slipstream.training.callbacks.console import ConsoleCallback
from slipstream.training.shard import RECENT, RecentEpisodes

SPEC = EnvSpec(spaces.Box(-1, 1, (2,)), spaces.Discrete(2), metrics=(Metric("depth", "m"),))


def ended(e, ret, depth=None, lost=None):
    n = len(e)
    metrics = {} if depth is None else {"depth": np.array(depth, float)}
    flags = None if lost is None else np.array(lost)
    return Episodes(np.zeros(n, int), np.array(e), np.array(ret, float), np.full(n, 3), metrics,
                    flags)  # fmt: skip


def test_means_of_each_members_last_episodes():
    recent = RecentEpisodes(SPEC, 2, 2)
    assert np.isnan(recent.scores()).all() and np.isnan(recent.means()["episode/depth"]).all()
    recent.add(ended([0, 1, 2], [1.0, 3.0, 8.0], [5.0, 7.0, 1.0], [False, False, True]))
    assert recent.counts.tolist() == [2, 0] and recent.scores()[0] == 2.0
    means = recent.means()
    assert list(means) == ["length", "episode/depth"]
    assert means["episode/depth"][0] == 6.0 and np.isnan(means["length"][1])
    recent.add(ended([3] * (RECENT + 1), [50.0, *[2.0] * RECENT], [9.0, *[4.0] * RECENT]))
    assert recent.scores()[1] == 2.0 and recent.means()["episode/depth"][1] == 4.0


def test_it_goes_on_from_its_state_and_from_one_without_metrics():
    recent, again, older = (RecentEpisodes(SPEC, 1, 1) for _ in range(3))
    recent.add(ended([0], [1.0], [5.0]))
    state = recent.get_state()
    again.set_state(state)
    older.set_state({name: values for name, values in state.items() if name != "metrics"})
    for one in (recent, again, older):
        one.add(ended([0], [2.0], [7.0]))
        assert one.scores()[0] == 1.5 and one.counts[0] == 2
    assert again.means()["episode/depth"][0] == 6.0 and older.means()["episode/depth"][0] == 7.0


def test_an_environments_metrics_reach_the_table_and_the_line(tmp_path):
    text = io.StringIO()
    shown = Console(file=text, width=300, color_system=None)
    run = slipstream.train(
        {
            "env": {"name": "probes"},
            "agent": {"n_steps": 16, "net_arch": [8], "n_epochs": 1, "batch_size": 32},
            "training": {"num_envs": 2, "total_timesteps": 256},
            "evaluation": {"episodes": 1},
        },
        out=tmp_path / "run",
        report=False,
        callbacks=[ConsoleCallback(shown)],
    )
    values = run.metrics()["episode/score"]
    assert np.isfinite(values[-1]).all()
    told = [line for line in text.getvalue().splitlines() if "256 of 256 steps" in line]
    assert any(line.count("score ") == 2 for line in told)  # the return, and the metric
