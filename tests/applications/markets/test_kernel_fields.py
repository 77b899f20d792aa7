"""Observations that a kernel shows again from a few fields are those seen, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slipstream.core.errors import ConfigError
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.vector_env import concat_final_obs, member_indices
from slipstream.markets.synthetic import SyntheticForex
from slipstream.rl.experience.replay.replay import Replay
from slipstream.rl.experience.replay.replay_config import ReplayConfig, replay_bytes
from slipstream.rl.experience.replay.state_storage import (
    DenseStorage,
    StateFieldStorage,
    make_state_layout,
    observed_fields,
)
from slipstream.rl.experience.rollout import Rollout

KERNELS = Path(__file__).parents[2] / "engine/samples"
MEMBERS, COPIES = 2, 4


def forex(folder, bars=1_500, **settings):
    SyntheticForex().write(folder, bars=bars)
    return {"data": {"folder": str(folder)}, "max_steps": 30, **settings}


def stepped(name, settings, plan, steps, slices=1):
    """The same steps in a replay of fields and in a dense one."""
    kernel = load_kernel(name)
    loaded = kernel.load(kernel.configure(settings))
    seeds, indices = member_indices(range(3, 3 + MEMBERS), COPIES)
    cuts = np.array_split(np.arange(len(seeds)), slices)
    envs = [KernelVectorEnv(kernel, loaded, seeds[own], indices[own]) for own in cuts]
    spec, choices = envs[0].spec, envs[0].mask_size
    size = (spec, MEMBERS, COPIES, choices)
    fields = Replay(plan._replace(storage="fields"), *size, envs)
    dense = Replay(plan._replace(storage="dense"), *size, envs)
    assert isinstance(fields.storage, StateFieldStorage) and isinstance(dense.storage, DenseStorage)
    rollout, rng = Rollout(spec, steps, MEMBERS, COPIES, choices), np.random.default_rng(1)
    for env, own in zip(envs, cuts, strict=True):
        at = slice(own[0], own[-1] + 1)
        env.reset(rollout.obs[0, at], None if not choices else rollout.mask[0, at])
    for replay in (fields, dense):
        replay.begin(rollout.obs[0], None if rollout.mask is None else rollout.mask[0])
    ends = 0
    for t in range(steps):
        rollout.actions[t] = actions_of(spec, rng, None if not choices else rollout.mask[t])
        finals = []
        for env, own in zip(envs, cuts, strict=True):
            lo, hi = own[0], own[-1] + 1
            env.step(rollout.actions[t, lo:hi], rollout.step_buffers(t, lo, hi), t)
            finals.append(env.drain_final_obs())
            finals[-1].index[:, 1] += lo
        together = concat_final_obs(finals)
        final_of = np.full(len(seeds), -1, np.int64)
        final_of[together.index[:, 1]] = np.arange(len(together.index))
        for replay in (fields, dense):
            replay.write(rollout, t, together, final_of)
        ends += len(together.index)
    return fields, dense, ends


def actions_of(spec, rng, mask):
    if not spec.nvec:
        return rng.uniform(-1, 1, (MEMBERS * COPIES, spec.action_dim))
    weight, first, columns = rng.random((MEMBERS * COPIES, spec.num_actions)), 0, []
    for size in spec.nvec:
        own = weight[:, first : first + size] * (
            1 if mask is None else mask[:, first : first + size]
        )
        columns.append(own.argmax(1))
        first += size
    return np.stack(columns, 1)


CASES = {
    "cartpole": lambda folder: ("cartpole", {"max_steps": 15}),
    "pendulum": lambda folder: ("pendulum", {"max_steps": 15}),
    "masked": lambda folder: (str(KERNELS / "masked.py"), {}),
    "forex": lambda folder: ("forex", forex(folder)),
    "sharpe": lambda folder: (
        "forex",
        forex(folder, reward="differential_sharpe", action="continuous"),
    ),
}


LONG = ("pendulum", "masked", "forex", "sharpe")


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=pytest.mark.slow) if c in LONG else c for c in CASES]
)
@pytest.mark.parametrize("n", [1, 3])
def test_what_was_seen_is_shown_again(case, n, tmp_path):
    name, settings = CASES[case](tmp_path)
    plan = ReplayConfig(160, 16, 0, 1, 1.0, n)
    fields, dense, ends = stepped(name, settings, plan, 100)  # rings have wrapped
    assert ends or case == "masked"  # which never cuts an episode
    gamma = np.array([0.9, 0.99])
    shown = 0
    for k in range(30):
        keys = np.array([k, k + 1_000], np.uint64)
        samples = [replay.sample(np.arange(2), keys, 32, n, gamma) for replay in (fields, dense)]
        one, two = samples
        assert one.index.tobytes() == two.index.tobytes()
        for name, left, right in zip(one.batch._fields, one.batch, two.batch, strict=True):
            assert left.tobytes() == right.tobytes(), name
        shown += len(np.unique(one.batch.obs.reshape(64, -1), axis=0))
    assert shown > 300 or case == "masked"  # which shows six


def test_several_slices_write_one_replay(tmp_path):
    plan = ReplayConfig(160, 16, 0, 1, 1.0)
    whole, _, _ = stepped("cartpole", {"max_steps": 15}, plan, 60)
    cut, _, _ = stepped("cartpole", {"max_steps": 15}, plan, 60, slices=2)
    assert whole.storage.raw.tobytes() == cut.storage.raw.tobytes()
    assert whole.ring.rows.tobytes() == cut.ring.rows.tobytes()


def test_the_smaller_is_chosen(tmp_path):
    sizes = {}
    for name, settings in (("cartpole", {}), ("forex", forex(tmp_path, 6_000, lookback=60))):
        kernel = load_kernel(name)
        loaded = kernel.load(kernel.configure(settings))
        env = KernelVectorEnv(kernel, loaded, *member_indices([1], 4))
        replay = Replay(ReplayConfig(100_000, 32, 0, 1, 1.0), env.spec, 1, 4, 0, [env])
        sizes[name] = (type(replay.storage), replay.nbytes / 100_000)
        kept = make_state_layout(kernel.specialize(loaded), env.spec)
        said = replay_bytes(replay.config, env.spec, 1, 4, kept.dtype.itemsize)
        assert said == pytest.approx(replay.nbytes, rel=1e-3)  # what is said before training
    assert sizes["cartpole"][0] is DenseStorage  # four numbers
    assert sizes["forex"][0] is StateFieldStorage and sizes["forex"][1] < 150


def test_fields_are_found_through_helpers():
    def fields_of(name):
        return observed_fields(load_kernel(name))

    assert fields_of("cartpole") == ("x", "v", "angle", "spin")
    own = ("bar", "segment", "units", "entry", "exposure", "drawdown", "sharpe_a", "sharpe_b")
    assert set(fields_of("forex")) == set(own)
    assert fields_of(str(KERNELS / "masked.py")) == ("time",)
    assert "positions" not in fields_of("portfolio") or "cash" in fields_of("portfolio")


def test_what_cannot_be_followed_is_kept_dense(tmp_path):
    text = (KERNELS / "masked.py").read_text()
    file = tmp_path / "tangled.py"
    file.write_text(
        text.replace("    out[0] = float(s.time)", "    t = s\n    out[0] = float(t.time)")
    )
    kernel = load_kernel(str(file))
    assert observed_fields(kernel) is None
    env = KernelVectorEnv(kernel, kernel.load(kernel.configure({})), *member_indices([1], 4))
    plan = ReplayConfig(100, 32, 0, 1, 1.0)
    assert isinstance(Replay(plan, env.spec, 1, 4, 5, [env]).storage, DenseStorage)
    with pytest.raises(ConfigError, match="Set the storage to auto"):
        Replay(plan._replace(storage="fields"), env.spec, 1, 4, 5, [env])
