"""L3: whole games of the bots against the original's measured rates, within four errors."""

import numpy as np
import pytest

from slipstream.core.discover import load_kernel
from slipstream.vector.contract import blank
from slipstream.vector.kernel_env import KernelVectorEnv
from slipstream.vector.loop import HOLD
from slipstream.vector.vector_env import member_indices

# players, games measured, shares of wins of player 1 and of draws, mean length, goals and catches
# of each player per 1000 steps; counters zeroed before every reset.
MEASURED = [
    ("strong", "strong", 611, 0.304, 0.362, 153.6, 4.15, 10.4, 10.7),
    ("weak", "weak", 209, 0.191, 0.622, 194.2, 1.95, 11.7, 11.5),
    ("strong", "weak", 341, 0.457, 0.411, 160.7, 3.67, 16.6, 9.3),
]
GAMES = 4000


def played(one, two, games=GAMES):
    """One whole game of each copy: winner, length, catches of both."""
    kernel = load_kernel("hockey")
    loaded = kernel.load(kernel.configure({"one": {one: 1.0}, "two": {two: 1.0}}))
    env = KernelVectorEnv(kernel, loaded, *member_indices([7], games), at_end=HOLD)
    out = blank(env)
    env.reset(out.obs)
    idle = np.zeros((games, 2, 4), np.float32)
    for t in range(251):
        env.step(idle, out, t)
        assert np.isfinite(out.obs).all() and np.isfinite(out.reward).all()
    episodes = env.drain_episodes()
    assert len(episodes.length) == games and episodes.length.max() <= 251
    return episodes


@pytest.mark.long
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
    for name, expected in (("goals", goals), ("touches", catches), ("touches_two", catches_two)):
        rate = 1000 * games.metrics[name].sum() / steps
        count = expected * n * length / 1000  # about Poisson; catches come in pairs
        assert abs(rate / expected - 1) < 4 * np.sqrt(2 / count), (name, rate, expected)
    rates = [1000 * games.metrics[k].sum() / steps for k in ("goals", "touches", "touches_two")]
    shares = [(winner == 1).mean(), (winner == 0).mean(), games.length.mean()]
    print(f"{one}-{two}: {np.round(shares, 3)} {np.round(rates, 2)}")
