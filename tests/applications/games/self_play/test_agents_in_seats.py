"""Every agent can be trained in a seat; a kernel's own players and outside opponents mix."""

from __future__ import annotations

import numpy as np
import pytest

import slipstream
from slipstream.kernels.vector_env import allocate_buffers
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve
from slipstream.training.trainer import Trainer


@pytest.mark.parametrize("agent", [pytest.param("ppo", marks=pytest.mark.slow), "dqn"])
def test_a_killed_run_ends_alike(tmp_path, agent):
    sizes = {"ppo": {"n_steps": 16, "batch_size": 64}, "dqn": {"learning_starts": 256}}
    states = []
    for name in ("whole", "again"):
        config = resolve(
            {
                "env": {"name": "tictactoe", "self_play": {"snapshot_iterations": 1, "slots": 2}},
                "agent": {"name": agent, **sizes[agent]},
                "training": {"num_envs": 16, "total_timesteps": 2048, "checkpoint_every": 0.25},
                "evaluation": {"every": 1.0, "episodes": 4},
            }
        )
        run = Run.create(config, tmp_path / name)
        Trainer(config, run).train()
        run.close()
        if name == "again":
            last = sorted((run.path / "checkpoints").glob("step-*"))[-1]
            last.rename(tmp_path / "gone")
            (run.path / "result.json").unlink()
            slipstream.resume(run.path, report=False)
        states.append(Run.open(run.path).load_checkpoint()[0])
    whole, again = states
    assert whole["opponents.pool.num_taken"][0] >= 3
    for key in whole:
        np.testing.assert_array_equal(whole[key], again[key], err_msg=key)


@pytest.mark.slow
def test_hockeys_own_bots_and_others_mix():
    """Half of the games are a bot's; there the other row of actions is not asked for."""
    env = slipstream.make_vec(
        "hockey",
        400,
        seed=3,
        opponents={"agent": 1, "weak": 1},
        self_play={"opponents": {"random": 1}},
    )
    out = allocate_buffers(env)
    env.reset_rows(out.obs)
    seat, kind = env._matches.learner, env._matches.kind
    np.testing.assert_array_equal(env.game.state["learner"], seat)
    bot = kind < 0
    assert set(kind.tolist()) == {-1, 0} and abs(bot.mean() - 0.5) < 0.1
    assert abs(seat.mean() - 0.5) < 0.1
    rows = np.arange(400)
    np.testing.assert_array_equal(out.obs, env._obs[rows, seat])
    env.step_rows(np.zeros((400, 4), np.float32), out)
    other = env._joint_actions[rows, 1 - seat]
    assert (other[bot] == 0.0).all() and (other[~bot] != 0.0).all()
    # What was asked for is what the game did.
    np.testing.assert_array_equal(env.game.state["actions"][rows, 1 - seat][~bot], other[~bot])
    assert (env.game.state["actions"][rows, 1 - seat][bot] != 0.0).any()


def test_hockey_is_evaluated_against_its_bots():
    config = resolve({"env": {"name": "hockey", "self_play": {}}})
    from slipstream.training.environments.factory import resolve_environment

    environment = resolve_environment(config.env_name, config.env_settings)
    assert environment.spec.players == 1 and environment.evaluator.spec.players == 1
    assert environment.evaluator.loaded.params["train"][0].opponent_strong == 1.0
    assert environment.loaded.params["train"][0].opponent_agent == 1.0
