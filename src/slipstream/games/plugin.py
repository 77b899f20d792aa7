"""Plugin of the games; see `core/plugins.py`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream.kernels.kernel import Kernel
    from slipstream.report.inputs import RunEvaluation
    from slipstream.report.page import Page
    from slipstream.training.environments.environment import Environment
    from slipstream.training.environments.kernel_environment import KernelEnvironment

commands = {"rank": "slipstream.games.rank"}
kernels = {
    "hockey": "slipstream.games.hockey.kernel",
    "tictactoe": "slipstream.games.tictactoe",
}


def kernel_class(kernel: Kernel) -> type[KernelEnvironment] | None:
    """Return the class of environments in which several players act."""
    if "player" not in inspect.signature(kernel.observe).parameters:
        return None
    from slipstream.games.self_play.self_play_env import GameEnvironment

    return GameEnvironment


def pages(environment: Environment | None, evaluation: RunEvaluation) -> Page | None:
    """Return the page of a two-player game."""
    if environment is None or evaluation.market is not None:
        return None
    from slipstream.games.report import game_page

    return game_page(environment, evaluation)
