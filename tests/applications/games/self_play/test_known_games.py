"""Games of two whose values are known: what self-play must reach."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

import slipstream

ROOT = Path(__file__).parents[4]
PENNIES = str(ROOT / "examples/kernels/pennies.py")
LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


def heads(out, **changes):
    """Return the final probability of heads for each role, [2]."""
    run = slipstream.train(
        PENNIES,
        out=out,
        total_timesteps=200_000,
        num_envs=64,
        overrides={
            "env.self_play": {"slots": 256, "snapshot_iterations": 1},
            "agent.ent_coef": 0.5,
            "agent.learning_rate": 1e-3,
            "agent.learning_rate_schedule": "linear",
            "agent.n_steps": 16,
            "agent.net_arch": [8],
            "evaluation.every": 1.0,
            **changes,
        },
        report=False,
    )
    policy = slipstream.load_policy(run)
    head = policy.actor(2).head(np.array([[1.0], [-1.0]], np.float32))[0, :2, :2].astype(float)
    return 1.0 / (1.0 + np.exp(head[:, 1] - head[:, 0]))


@pytest.mark.slow
def test_matching_pennies_is_mixed_evenly(tmp_path):
    """Both roles show heads half of the time, the only equilibrium; against all past weights with
    an entropy bonus, as in smooth fictitious play (Fudenberg and Levine 1995). Whoever chases the
    latest weights without one circles round it instead."""
    np.testing.assert_allclose(heads(tmp_path / "mixed"), 0.5, atol=0.05)
    chasing = {"env.self_play.sampling": "latest", "agent.ent_coef": 0.0}
    assert np.abs(heads(tmp_path / "chasing", **chasing) - 0.5).max() > 0.1


def winner(cells):
    for a, b, c in LINES:
        if cells[a] and cells[a] == cells[b] == cells[c]:
            return cells[a]
    return 0


@functools.cache
def value(cells, mover):
    """Return the minimax value of a position for the player to move: 1, 0 or -1."""
    if winner(cells):
        return winner(cells) * mover
    if all(cells):
        return 0
    return max(-value(after(cells, a, mover), -mover) for a in range(9) if not cells[a])


def after(cells, place, mark):
    return (*cells[:place], mark, *cells[place + 1 :])


def results(policy, me, cells=(0,) * 9, mover=1, perfect=True):
    """Return the results of all games against every optimal player: 1, 0 or -1.

    Args:
        policy: ours; me: 1 where it begins, else -1; cells, mover: where the game stands.
        perfect: False for every game against any player at all.
    """
    if winner(cells) or all(cells):
        yield winner(cells) * me
        return
    if mover == me:
        seen = [cells[i] == me for i in range(9)] + [cells[i] == -me for i in range(9)] + [1.0]
        allowed = np.array([not cell for cell in cells] + [False])
        place = int(policy.act(np.array(seen, np.float32), mask=allowed))
        yield from results(policy, me, after(cells, place, me), -mover, perfect)
        return
    for place in range(9):
        if not cells[place]:
            then = after(cells, place, mover)
            if not perfect or -value(then, -mover) == value(cells, mover):
                yield from results(policy, me, then, -mover, perfect)


def test_the_perfect_player_is_one():
    assert value((0,) * 9, 1) == 0
    assert value((1, 1, 0, 0, 0, 0, 0, 0, -1), 1) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_tic_tac_toe_ends_in_a_draw_with_perfect_play(tmp_path, seed):
    """From both seats, and whichever of its equally good moves the perfect player takes."""
    run = slipstream.train(
        "tictactoe",
        out=tmp_path / "run",
        seed=seed,
        overrides={
            "env.self_play": {"sampling": "latest", "snapshot_iterations": 1},
            "evaluation.every": 1.0,
        },
        report=False,
    )
    policy = slipstream.load_policy(run)
    for me in (1, -1):
        assert set(results(policy, me)) == {0}


def test_the_policy_that_comes_along_loses_to_nobody():
    """Every game that its likeliest moves allow is played, as first and as second."""
    policy = slipstream.load_policy(ROOT / "examples/policies/tictactoe")
    for me in (1, -1):
        assert set(results(policy, me, perfect=False)) == {0, 1}


def test_who_knows_nothing_loses_to_the_perfect_player():
    """An untrained policy loses games, so the test above can fail."""
    from slipstream.rl.agents.ppo.config import PPOConfig
    from slipstream.rl.agents.ppo.ppo import PPO
    from slipstream.training.environments.factory import make_environment

    spec = make_environment("tictactoe", {"self_play": {}}).spec
    policy = PPO(PPOConfig(), spec, [0], 8).policy
    assert -1 in set(results(policy, 1)) | set(results(policy, -1))
