"""L3: whole games of the bots against the original's measured rates, within four errors."""

import importlib
import importlib.util

import numpy as np
import pytest

from slipstream.kernels.env_checker import allocate_buffers
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.loop import HOLD
from slipstream.kernels.vector_env import member_indices

# players, games measured, shares of wins of player 1 and of draws, mean length, goals and catches
# of each player per 1000 steps; each game in a fresh environment of the original at 59dbc68, who
# starts alternates (23 November 2026; a second review's 2,000 of strong against weak: 0.392 won,
# 0.461 drawn, 0.148 lost, mean length 172).
MEASURED = [
    ("strong", "strong", 2000, 0.3065, 0.3745, 152.2, 4.11, 10.32, 10.51),
    ("weak", "weak", 2000, 0.2050, 0.5865, 190.4, 2.17, 12.73, 12.78),
    ("strong", "weak", 2000, 0.4010, 0.4500, 172.4, 3.19, 16.05, 8.91),
]
GAMES = 4000


def played(one, two, games=GAMES):
    """One whole game of each copy: winner, length, catches of both."""
    kernel = load_kernel("hockey")
    loaded = kernel.load(kernel.configure({"player1": {one: 1.0}, "player2": {two: 1.0}}))
    env = KernelVectorEnv(kernel, loaded, *member_indices([7], games), autoreset_mode=HOLD)
    out = allocate_buffers(env)
    env.reset(out.obs)
    idle = np.zeros((games, 2, 4), np.float32)
    for t in range(251):
        env.step(idle, out, t)
        assert np.isfinite(out.obs).all() and np.isfinite(out.reward).all()
    episodes = env.drain_episodes()
    assert len(episodes.length) == games and episodes.length.max() <= 251
    return episodes


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("row", MEASURED, ids=lambda row: "-".join(row[:2]))
def test_rates_of_the_bots(row):
    one, two, n, wins, draws, length, goals, catches, catches_two = row
    games = played(one, two)
    winner, steps = games.metrics["winner"], games.length.sum()

    def near(share, expected):
        error = np.sqrt(expected * (1 - expected) * (1 / n + 1 / GAMES))
        assert abs(share - expected) < 4 * error, (share, expected)

    near((winner == 1).mean(), wins)
    near((winner == 0).mean(), draws)
    # Lengths lie between 20 and 251, deviation below 90.
    assert abs(games.length.mean() - length) < 4 * 90 * np.sqrt(1 / n + 1 / GAMES)
    for name, expected in (
        ("goals", goals),
        ("touches_player1", catches),
        ("touches_player2", catches_two),
    ):
        rate = 1000 * games.metrics[name].sum() / steps
        count = expected * n * length / 1000  # about Poisson; catches come in pairs
        assert abs(rate / expected - 1) < 4 * np.sqrt(2 / count), (name, rate, expected)
    rates = [
        1000 * games.metrics[k].sum() / steps
        for k in ("goals", "touches_player1", "touches_player2")
    ]
    shares = [(winner == 1).mean(), (winner == 0).mean(), games.length.mean()]
    print(f"{one}-{two}: {np.round(shares, 3)} {np.round(rates, 2)}")


# Quantiles of the puck's speed over all steps, m/s, by players.
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
SPEEDS = {
    ("strong", "strong"): (1.6, 7.3, 16.5, 20.8, 24.7, 58.8),
    ("weak", "weak"): (0.15, 1.35, 15.5, 20.7, 24.7, 59.8),
    ("strong", "weak"): (0.25, 3.4, 15.8, 21.3, 29.7, 60.1),
}
MARGIN = 0.02  # of equivalence: of shares, and of distributions


def equivalent(one, two, margin=MARGIN, z=1.645):
    """TOST: whether two samples of 0 and 1 have shares within the margin, at 5 % (Schuirmann)."""
    difference = np.mean(one) - np.mean(two)
    error = np.sqrt(np.var(one) / len(one) + np.var(two) / len(two))
    return abs(difference) + z * error < margin


def distance(one, two):
    """Kolmogorov and Smirnov's D of two samples."""
    grid = np.sort(np.concatenate([one, two]))
    below = [np.searchsorted(np.sort(x), grid, side="right") / len(x) for x in (one, two)]
    return float(np.abs(below[0] - below[1]).max())


def test_two_measurements_of_the_original_agree():
    """Ours and a second review's, 2,000 games each of strong against weak."""
    (wins, draws, length) = next(r[3:6] for r in MEASURED if r[:2] == ("strong", "weak"))
    for share, other in ((wins, 0.392), (draws, 0.461), (1 - wins - draws, 0.148)):
        assert abs(share - other) < 2 * np.sqrt(other * (1 - other) * (2 / 2000)), (share, other)
    assert abs(length - 172) < 2 * 85 * np.sqrt(2 / 2000)


def test_equivalence_by_hand():
    ones = np.ones(5000)
    ones[:2500] = 0.0
    assert equivalent(ones, ones)  # 1.645 * sqrt(2 * 0.25 / 5000) = 0.0165
    assert not equivalent(ones[:2000], ones[1500:3500])  # too few, and far apart
    assert distance(np.array([1.0, 2.0]), np.array([1.5, 3.0])) == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("players", SPEEDS, ids="-".join)
def test_the_pucks_speed_is_distributed_as_measured(players):
    kernel = load_kernel("hockey")
    loaded = kernel.load(
        kernel.configure(
            {n: {p: 1.0} for n, p in zip(("player1", "player2"), players, strict=True)}
        )
    )
    env = KernelVectorEnv(kernel, loaded, *member_indices([9], 2000), autoreset_mode=HOLD)
    out, speeds = allocate_buffers(env), []
    env.reset(out.obs)
    for t in range(251):
        env.step(np.zeros((2000, 2, 4), np.float32), out, t)
        going = env.episode_state["held"] == 0
        speeds.append(np.hypot(*env.state["linear_velocity"][going, 2].T))
    speed = np.concatenate(speeds)
    below = [(speed < quantile).mean() for quantile in SPEEDS[players]]
    # The table's quantiles are rounded and of some hundred games, whose steps hang together.
    assert np.abs(np.array(below) - SHARES).max() < 2 * MARGIN, np.round(below, 3)


@pytest.mark.slow
def test_both_sides_are_equal_to_two_points():
    """Reflection: equal bots win equally often on the left and on the right."""
    games = played("strong", "strong", 12_600)
    winner, steps = games.metrics["winner"], games.length.sum()
    assert equivalent(winner == 1, winner == -1)
    catches = [games.metrics[name].sum() / steps for name in ("touches_player1", "touches_player2")]
    assert 0.95 < catches[0] / catches[1] < 1.05


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_bots_do_as_they_do_in_the_original():
    """Beside the original itself, where it is installed: 12,600 games of strong against weak."""
    if importlib.util.find_spec("hockey") is None:
        pytest.skip("the original environment is not installed (docs/guides/hockey.md says how)")
    original = importlib.import_module("hockey.hockey_env")
    if not hasattr(original, "HockeyEnv"):
        pytest.skip("the installed package `hockey` is not the game")
    ours = played("strong", "weak", 12_600)
    bots = original.BasicOpponent(weak=False), original.BasicOpponent(weak=True)
    winner, length = [], []
    for g in range(12_600):
        env = original.HockeyEnv()  # a fresh one: counters of the puck's holder survive its resets
        obs, _ = env.reset(one_starting=bool(g % 2))
        done, steps = False, 0
        while not done:
            action = np.hstack([bots[0].act(obs), bots[1].act(env.obs_agent_two())])
            obs, _, done, _, info = env.step(action)
            steps += 1
        winner.append(info["winner"])
        length.append(steps)
    for result in (1, 0, -1):
        assert equivalent(ours.metrics["winner"] == result, np.array(winner) == result)
    assert distance(ours.length, np.array(length)) < MARGIN
