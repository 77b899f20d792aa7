"""L4: a policy plays elsewhere as it plays here.

Here: the oracle on Box2D. In the original, where it is installed (from its repository; the package
`hockey` of PyPI is something else) and `SLIPSTREAM_HOCKEY_RUNS` names runs: `pytest -m long
tests/interfaces/adapters/test_hockey_transfer.py`.
"""

import importlib
import importlib.util
import os

import hockey_world
import numpy as np
import pytest

import slipstream
from slipstream.compat.hockey_project.vectorized_env import HockeyPlayer
from slipstream.core.errors import ConfigError
from slipstream.games.hockey.kernel import decode_action
from slipstream.kernels.interpreter import Records
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.vector_env import allocate_buffers, member_indices
from slipstream.training.runs.matches import Player, play
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve

GAMES = 2000
SMALL = {
    "agent": {"n_steps": 16, "batch_size": 64, "n_epochs": 1, "net_arch": [8]},
    "training": {"num_envs": 8, "total_timesteps": 256},
    "evaluation": {"episodes": 2, "every": 1.0},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    values = {**SMALL, "env": {"name": "hockey", "opponents": {"weak": 1.0}}}
    return slipstream.train(values, out=tmp_path_factory.mktemp("it") / "run", report=False)


def test_a_policy_plays_the_oracle_step_for_step_as_it_plays_the_kernel(run):
    """Both sides are the same policy, each with its own view."""
    player, game = HockeyPlayer(run.path), hockey_world.Game(backend="serial")
    game.begin(5)
    seen = game.out.obs
    for t in range(60):
        here = [player.get_step(game.real.observation(side)) for side in range(2)]
        if t:  # what the kernel shows is what the oracle shows, and so are the actions
            assert here == [player.get_step(seen[0, side]) for side in range(2)]
        assert game.step(np.concatenate(here)) == []
        if game.real.done:
            break


def test_discrete_actions_become_the_numbers_that_the_kernel_makes_of_them():
    kernel = load_kernel("hockey")
    for fineness, keep in ((2, True), (3, True), (4, False)):
        config = {"num_action_levels": fineness, "puck_hold": keep}
        loaded = kernel.load(kernel.configure(config))
        env = KernelVectorEnv(kernel, loaded, *member_indices([0], 1), backend="serial")
        env.reset(allocate_buffers(env).obs)
        s, p = Records(env.state)[0], Records(env.params)[0]
        player = HockeyPlayer.__new__(HockeyPlayer)
        player._puck_hold = keep
        player.policy = type(
            "P", (), {"actions": type("A", (), {"sizes": (env.spec.action_space.n,)})}
        )
        for choice in range(env.spec.action_space.n):
            decode_action(s, p, np.array([choice]), 0)
            assert player._decode(choice) == list(s.actions[0])[: 4 if keep else 3]


def test_a_policy_of_another_game_is_refused(tmp_path):
    values = {**SMALL, "env": {"name": "cartpole"}}
    run = slipstream.train(resolve(values), out=tmp_path / "run", report=False)
    with pytest.raises(ConfigError, match="hockey"):
        HockeyPlayer(run.path)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_win_rates_in_the_original():
    """|difference of win rates| within 3 points over 2,000 games, for every run and bot."""
    if importlib.util.find_spec("hockey") is None:
        pytest.skip("the original environment is not installed (docs/guides/hockey.md says how)")
    original = importlib.import_module("hockey.hockey_env")
    if not hasattr(original, "HockeyEnv"):
        pytest.skip("the installed package `hockey` is not the game")
    runs = os.environ.get("SLIPSTREAM_HOCKEY_RUNS", "").split()
    if not runs:
        pytest.skip("SLIPSTREAM_HOCKEY_RUNS names no runs, separated by spaces")
    for path in runs:
        here, player = Run.open(path), HockeyPlayer(path)
        policy = Player(here.path.name, player.policy, here.config.env_settings)
        for weak, bot in ((True, "weak"), (False, "strong")):
            ours = (play("hockey", policy, Player(bot), GAMES, 11).result == 1).mean()
            theirs = won_there(original, player, weak, GAMES)
            print(f"{here.path.name} against {bot}: {ours:.4f} here, {theirs:.4f} there")
            assert abs(ours - theirs) <= 0.03


def won_there(original, player, weak, games):
    """Share of games that the player wins in the original, from both sides."""
    won, bot = 0, original.BasicOpponent(weak=weak)
    for g in range(games):
        env = original.HockeyEnv()  # a fresh one: counters of the puck's holder survive its resets
        obs, _ = env.reset(one_starting=bool(g // 2 % 2))
        done = False
        while not done:
            other = env.obs_agent_two()
            if g % 2 == 0:
                action = np.hstack([player.act(obs), bot.act(other)])
            else:
                action = np.hstack([bot.act(obs), player.act(other)])
            obs, _, done, _, info = env.step(action)
        won += info["winner"] == (1 if g % 2 == 0 else -1)
    return won / games
