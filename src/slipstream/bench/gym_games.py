"""The Gymnasium environments on which defaults are compared, and how long each is trained."""

from __future__ import annotations

from dataclasses import dataclass

SEEDS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class GymGame:
    """One environment.

    Attributes:
        env_id: of Gymnasium.
        low, high: the range of its scores: what an untrained and a very good policy reach.
        budgets: steps of training, measured in this order.
        zoo: the budget of the RL Zoo's hyperparams/ppo.yml, None where it has no entry.
        held_out: whether the defaults were chosen without a look at it.
        episodes: fresh ones of a score; more where one episode says little.
    """

    env_id: str
    low: float
    high: float
    budgets: tuple[int, ...]
    zoo: int | None = None
    held_out: bool = False
    episodes: int = 100


GAMES = (
    GymGame("CartPole-v1", 0, 500, (100_000,), 100_000),
    GymGame("Acrobot-v1", -500, -60, (100_000, 1_000_000), 1_000_000),
    GymGame("MountainCarContinuous-v0", -100, 100, (20_000,), 20_000),
    GymGame("LunarLander-v3", -250, 250, (100_000, 1_000_000), 1_000_000),
    GymGame("Taxi-v4", -200, 10, (100_000, 300_000)),
    GymGame("Pendulum-v1", -1600, -100, (100_000,), 100_000),
    GymGame("Blackjack-v1", -1, 1, (100_000,), episodes=1000),
    GymGame("FrozenLake-v1", 0, 1, (100_000,), held_out=True, episodes=1000),
    GymGame("LunarLanderContinuous-v3", -250, 250, (100_000, 1_000_000), 1_000_000, held_out=True),
)
