"""Somebody else's vector environments under slipstream's agents."""

import numpy as np
import pytest

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.kernels.vector_env import allocate_buffers

# EnvPool makes its own spaces so.
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered:UserWarning")

PEERS = tuple(pytest.param(kind, marks=pytest.mark.peers) for kind in ("sb3", "envpool"))
KINDS = ("NextStep", "SameStep", "Disabled", "own", *PEERS)


def target(kind):
    if kind == "sb3":
        pytest.importorskip("stable_baselines3", reason="needs requirements/peers.lock")
        return "vec:batched_world:sb3_vec", {}
    if kind == "envpool":
        pytest.importorskip("envpool", reason="needs requirements/peers.lock")
        return "vec:batched_world:pool", {}
    if kind == "own":
        return "vec:batched_world:own_vec", {}
    return "vec:batched_world:gymnasium_vec", {"mode": kind}


@pytest.mark.parametrize("kind", KINDS)
def test_episodes_are_whole_and_what_is_no_step_is_not_valid(kind):
    name, kwargs = target(kind)
    with slipstream.make_vec(name, 3, kwargs=kwargs) as env:
        out = allocate_buffers(env)
        env.reset_rows(out.obs)
        steps, cut = np.zeros(3, int), 0
        for t in range(80):
            before = out.obs.copy()
            env.step_rows(np.full((3, 1), t % 2), out, t)
            steps += out.valid
            ended = out.terminated | out.truncated
            assert (out.reward[out.valid] == 1.0).all() and (out.reward[~out.valid] == 0.0).all()
            episodes, finals = env.drain_episodes(), env.drain_final_obs()
            assert episodes.e.tolist() == np.flatnonzero(ended).tolist()
            assert episodes.length.tolist() == steps[ended].tolist()
            assert episodes.returns.tolist() == steps[ended].tolist()
            for row, (_, e) in zip(finals.obs, finals.index, strict=True):
                # The cart goes on where it was: 0.02 s at its speed, whatever came next.
                assert row[0] == pytest.approx(before[e, 0] + 0.02 * before[e, 1], abs=1e-6)
                cut += 1
            steps[ended] = 0
            if kind in ("NextStep", "own", "envpool"):
                assert (~out.valid).sum() <= 3
            else:
                assert out.valid.all()
        assert cut > 0


@pytest.mark.parametrize("kind", ["NextStep", "own", *PEERS])
def test_our_agents_train_on_them_and_are_evaluated(kind, tmp_path):
    name, kwargs = target(kind)
    config = {
        "env": {"name": name, "kwargs": kwargs},
        "agent": {"n_steps": 32, "batch_size": 64, "net_arch": [16]},
        "training": {"num_envs": 4, "total_timesteps": 640},
        "evaluation": {"episodes": 5},
    }
    run = slipstream.train(config, out=tmp_path / "run", report=False)
    assert run.result["steps_per_second"] > 0
    tracks = slipstream.evaluate(run).episodes
    assert tracks and all(5 <= track.length <= 20 for track in tracks)
    assert all(track.episode_return == track.length for track in tracks)


def test_wrong_names_are_refused():
    with pytest.raises(ConfigError, match="Write vec:MODULE:FUNCTION"):
        slipstream.make_vec("vec:no_such_module:pool", 2)
    with pytest.raises(ConfigError, match=r"RuntimeError: no licence 7 when .*\(1, licence=7\)"):
        slipstream.make_vec("vec:batched_world:broken", 2, kwargs={"licence": 7})
    with pytest.raises(ConfigError, match="is not a supported vector environment"):
        slipstream.make_vec("vec:builtins:range", 2)


@pytest.mark.parametrize(
    "name", [pytest.param("normalised", marks=pytest.mark.peers), "normalised_by_gymnasium"]
)
def test_statistics_that_move_are_refused(name):
    if name == "normalised":
        pytest.importorskip("stable_baselines3", reason="needs requirements/peers.lock")
        with slipstream.make_vec("vec:batched_world:normalised", 2, kwargs={"training": False}):
            pass
    with pytest.raises(ConfigError, match="normalizes by running statistics"):
        slipstream.make_vec(f"vec:batched_world:{name}", 2)
