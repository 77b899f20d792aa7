"""Tic-tac-toe, a two-player game with a known value: perfect play is a draw.

Both players act at every step; the only allowed action of the player that is not to move is to wait
(docs/guides/self-play.md).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slipstream.core import config
from slipstream.kernels import kernel
from slipstream.kernels.spec import EnvSpec, Metric

WAIT = 9  # the action after those of the nine cells
_LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]

# Opponents in training if the config names none.
OPPONENTS = {"self_play": {"sampling": "latest", "snapshot_iterations": 1}}

# With these opponents and settings, a policy loses no game after 3 million steps. The entropy bonus
# keeps all equally good moves likely.
DEFAULT_HYPERPARAMS = {
    "ppo": {
        "agent": {
            "n_steps": 32,
            "batch_size": 256,
            "activation": "relu",
            "gamma": 1.0,
            "learning_rate": 1e-3,
            "learning_rate_schedule": "linear",
            "ent_coef": 0.1,
        },
        "training": {"num_envs": 256, "total_timesteps": 3_000_000},
    }
}


class Config(config.Config):
    pass


class Params(NamedTuple):
    pass


class Data(NamedTuple):
    """Read-only arrays of the game.

    Attributes:
        lines: int64 [8, 3], cells of each line.
    """

    lines: NDArray[np.int64]


STATE = np.dtype(
    [
        ("key", "u8"),
        ("counter", "u8"),
        ("cells", "i8", (9,)),  # 0 empty, 1 and -1 the players' marks
        ("moves", "i8"),  # moves so far; player 0 is to move if even
        ("winner", "i8"),  # 1, 0 or -1
    ],
    align=True,
)


def load(config: Config) -> kernel.KernelData:
    """Return the lines of the board."""
    return kernel.KernelData(Data(np.array(_LINES)), {"train": (Params(),)})


def reset(s: Any, p: Any, d: Any) -> None:
    """Start with an empty board."""
    s.moves = 0


def step(s: Any, action: Any, p: Any, d: Any) -> tuple[tuple[float, float], bool, bool]:
    """Mark a cell for the player to move; three marks in a line win."""
    player = s.moves % 2
    mark = 1 - 2 * player
    s.cells[action[player, 0]] = mark
    s.moves = s.moves + 1
    for line in range(8):
        total = 0
        for i in range(3):
            total += s.cells[d.lines[line, i]]
        if total == 3 * mark:
            s.winner = mark
    reward = float(s.winner)
    return (reward, -reward), s.winner != 0 or s.moves == 9, False


def observe(s: Any, p: Any, d: Any, player: int, out: Any) -> None:
    """Write the player's marks, the opponent's marks, and whether the player is to move."""
    mark = 1 - 2 * player
    for i in range(9):
        out[i] = 1.0 if s.cells[i] == mark else 0.0
        out[9 + i] = 1.0 if s.cells[i] == -mark else 0.0
    out[18] = 1.0 if s.moves % 2 == player else 0.0


def mask(s: Any, p: Any, d: Any, player: int, out: Any) -> None:
    """Allow the empty cells to the player to move, and waiting to the other one."""
    to_move = s.moves % 2 == player
    for i in range(9):
        out[i] = to_move and s.cells[i] == 0
    out[WAIT] = not to_move


def spec(p: Any, d: Any) -> EnvSpec:
    """Return the spaces: 19 observations, ten actions; a game has at most nine moves."""
    return EnvSpec(
        observation_space=spaces.Box(0.0, 1.0, (19,), np.float32),
        action_space=spaces.Discrete(10),
        metrics=(Metric("winner", "1, 0 or -1"), Metric("moves", "moves")),
        players=2,
        winner="winner",
        max_episode_steps=9,
    )
