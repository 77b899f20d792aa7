"""Matches of policies for two players, against another policy or a bot."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.core.safe_io import path_exists, read_json
from slipstream.core.storage import folder_registry
from slipstream.core.storage.atomic_io import write_hashed
from slipstream.core.storage.checkpoint import STATE, strip_prefix
from slipstream.core.storage.status_file import RUN
from slipstream.core.text import NOTHING, SummaryRepr, did_you_mean, format_columns
from slipstream.kernels.vector_env import VectorEnv, allocate_buffers
from slipstream.rl.best_policies import BEST
from slipstream.rl.nets.actions import ActionMap
from slipstream.rl.nets.policy import Policy
from slipstream.training.environments.environment import MAX_EVAL_STEPS, Environment
from slipstream.training.environments.factory import get_game_class, get_kind
from slipstream.training.environments.parts import SNAPSHOTS, Players, short_name
from slipstream.training.runs.policies import DeployedPolicy, deployed_folder
from slipstream.training.runs.run import CONFIG, Run
from slipstream.training.settings.config import RunConfig

MAX_ENVS = 1_024  # parallel games; changes only speed
DETERMINISTIC_NOTE = (
    "all games of a side are identical, as neither the game nor the players are random"
)
_FILE = "games.json"
_OPPONENTS = "opponents."  # prefix in a checkpoint
_SHARE: list[Any] = [(int, float)]  # share and interval
_SHAPE: dict[str, Any] = {
    "games": [
        {
            **{"player2": str, "games": int, "mean_length": (int, float)},
            **dict.fromkeys(("won", "drawn", "lost"), _SHARE),
        }
    ]
}


@dataclass(frozen=True)
class Player:
    """A player: a policy, or a bot by its name.

    Attributes:
        name: name in tables.
        policy: policy of the first player; the second player needs none.
        run: run of the policy.
        member: member of the run; None for the best one.
        path: path of a policy on disk; None for a bot.
        snapshots: snapshots of a run as opponents.
    """

    name: str
    policy: Policy | None = None
    run: Run | None = None
    path: str | None = None
    snapshots: Any = None
    member: int | None = None


class Share(NamedTuple):
    """A share of games and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, repr=False, eq=False)
class MatchResult(SummaryRepr):
    """J games from the view of `player1`.

    Attributes:
        player1, player2: names of the players.
        result: int64 [J]: 1 won, 0 drawn, -1 lost.
        left: bool [J], True if `player1` played on the left.
        length: int64 [J], steps.
        deterministic: all games of a side are identical, as neither game nor players are random.
    """

    player1: str
    player2: str
    result: NDArray[np.int64]
    left: NDArray[np.bool_]
    length: NDArray[np.int64]
    deterministic: bool = False

    @property
    def win_rate(self) -> float:
        """Share of games that `player1` won."""
        return self.shares()["won"].value

    @property
    def draw_rate(self) -> float:
        """Share of drawn games."""
        return self.shares()["drawn"].value

    @property
    def loss_rate(self) -> float:
        """Share of games that `player1` lost."""
        return self.shares()["lost"].value

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of `win_rate` (Wilson); None if `deterministic`."""
        won = self.shares()["won"]
        return None if self.deterministic else (won.low, won.high)

    def summary(self) -> dict[str, object]:
        """Return players, number of games and their shares."""
        ends = None if self.interval is None else " to ".join(map(_percent, self.interval))
        return {
            "players": f"{self.player1} against {self.player2}",
            "games": len(self.result),
            "won": _percent(self.win_rate),
            "95 % interval": ends,
            "drawn": _percent(self.draw_rate),
            "lost": _percent(self.loss_rate),
        }

    def shares(self) -> dict[str, Share]:
        """Return the shares of games won, drawn and lost, each with its interval."""
        names = {"won": 1, "drawn": 0, "lost": -1}
        counts = {name: int((self.result == value).sum()) for name, value in names.items()}
        total = len(self.result)
        return {
            name: share_interval(count, total, self.deterministic) for name, count in counts.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for a file."""
        decided, steps = int((self.result != 0).sum()), int(self.length.sum())
        sides = {"won_left": self.left, "won_right": ~self.left}
        return {
            "player1": self.player1,
            "player2": self.player2,
            "games": len(self.result),
            **{name: list(share) for name, share in self.shares().items()},
            **{n: float((self.result[at] == 1).mean()) for n, at in sides.items() if at.any()},
            "decided_per_1000_steps": 1000.0 * decided / steps,
            "mean_length": float(self.length.mean()),
            "deterministic": self.deterministic,
        }


class GamesResult(tuple[MatchResult, ...]):
    """Results of matches, one per opponent; `print` shows them as a table."""

    @property
    def by_opponent(self) -> dict[str, MatchResult]:
        """Results by name of the opponent."""
        return {match.player2: match for match in self}

    def __str__(self) -> str:
        columns = ("opponent", "games", "won", "95 % interval", "drawn", "lost", "mean length")
        rows = [
            (
                *(match.player2, f"{len(match.result):,}", _percent(match.win_rate)),
                NOTHING if match.interval is None else " to ".join(map(_percent, match.interval)),
                *(_percent(match.draw_rate), _percent(match.loss_rate)),
                f"{match.length.mean():.0f}",
            )
            for match in self
        ]
        return "\n".join(format_columns(columns, rows, left=1))


@dataclass(frozen=True, repr=False, eq=False)
class BestResponse(SummaryRepr):
    """A best response to a policy.

    Attributes:
        run: run that trained the response.
        match: games of the response against the policy.
    """

    run: Run
    match: MatchResult

    @property
    def win_rate(self) -> float:
        """Share of games that the response won: a lower bound of the policy's exploitability."""
        return self.match.win_rate

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of `win_rate` (Wilson); None if all games of a side are identical."""
        return self.match.interval

    def summary(self) -> dict[str, object]:
        """Return the run's directory and the shares of games."""
        return {"run": self.run.path, **self.match.summary()}


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def wilson(count: int, total: int, z: float = 1.959964) -> Share:
    """Return a share and its 95 % interval (Wilson 1927)."""
    share, square = count / total, z * z / total
    middle = share + square / 2.0
    half = z * math.sqrt(share * (1.0 - share) / total + square / (4.0 * total))
    scale = 1.0 + square
    return Share(share, max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale))


def share_interval(count: int, total: int, deterministic: bool = False) -> Share:
    """Return a share of games and its 95 % interval (Wilson), without width if all are
    identical.
    """
    return Share(*(count / total,) * 3) if deterministic else wilson(count, total)


def load_player(path: str | os.PathLike[str], member: int | None = None) -> Player:
    """Load the best policy of a run, of a member or of the best member."""
    run = path if isinstance(path, Run) else Run.open(path)
    if member is None:
        return Player(run.path.name, run.best_policy(), run, str(run.path))
    folder = run.best.folder_of(member)
    name = f"{run.path.name}/{folder.name}"
    return Player(name, run.best_policy(member), run, str(folder), member=member)


def load_learner(
    path: str | os.PathLike[str], member: int | None = None, trust: bool = False
) -> tuple[RunConfig, Player]:
    """Load a policy for two players, of a run or exported, and its training config.

    Args:
        path: a run, a folder in its `best`, or the folder of a policy that has a config.
        member: member of the run; None for the best one.
        trust: as for `Run.open`.

    Raises:
        ConfigError: it is not a policy for two players, or `member` is given for a single policy.
        CheckpointError: there is no policy yet, or it is damaged.
    """
    run, run_member = (
        (path, None) if isinstance(path, Run) else find_run(path, trust) or (None, None)
    )
    deployed = None if run is not None else deployed_folder(Path(path))
    if member is not None and (run_member is not None or deployed is not None):
        raise ConfigError(
            f"{path} is a single policy. Remove --member, or give its run's directory."
        )
    if deployed is not None:
        policy = DeployedPolicy.open(deployed, trust)
        check_game(policy.config.env_name)
        return policy.config, Player(deployed.absolute().name, policy.policy, path=str(deployed))
    run = run or Run.open(Path(path))  # raises an error that explains the problem
    check_game(run.config.env_name)
    return run.config, load_player(run, run_member if member is None else member)


def list_bots(env_name: str) -> list[str]:
    """Return the opponents that need no training: a game's bots, else `random`; empty if no
    game.
    """
    players = get_game_class(env_name)
    return [] if players is None else players.bots(env_name)


def load_snapshots(run: Run) -> Player:
    """Load the snapshots in the last checkpoint of a run's best member, as used in training.

    Raises:
        ConfigError: it was not trained against snapshots.
    """
    member, checkpoint = run.best.highest, run.load_checkpoint()
    tensors = {} if checkpoint is None else checkpoint[0]
    state = {k: v[member : member + 1] for k, v in strip_prefix(_OPPONENTS, tensors).items()}
    game = _game(run.config.env_name)
    past = game.past(run.config.env_settings, run.best_policy(member), state)
    if past is None:
        raise ConfigError(
            f"{run.path} was not trained against its own snapshots, so it has none. Choose "
            "another opponent."
        )
    return Player(SNAPSHOTS, snapshots=past)


def load_opponent(env_name: str, text: str, trust: bool = False) -> Player:
    """Load a bot by name, or a policy by run directory, policy folder or ONNX file.

    Args:
        env_name: name of the game.
        text: name or path of the opponent.
        trust: see `Run.open`; only settings of the game are read from a run's config, and only if
            the policy is the first player.

    Raises:
        ConfigError: it is none of these, or belongs to another game.
        CheckpointError: the run has no policy yet.
    """
    check_game(env_name)
    known = list_bots(env_name)
    if text in known:
        return Player(text)
    if not path_exists(Path(text).expanduser()) and folder_registry.find_folder(text, RUN) is None:
        game = get_kind(env_name).short_name
        raise ConfigError(
            f"There is no opponent `{text}`: it is neither a bot of `{game}` nor a run "
            f"directory; {did_you_mean(text, known)}"
        )
    run_and_member = find_run(text, trust)
    if run_and_member is None:
        return Player(short_name(text), path=text)
    return load_player(*run_and_member)


def find_run(path: str | os.PathLike[str], trust: bool = False) -> tuple[Run, int | None] | None:
    """Return the run of a path, and the member if it is a member's folder; None if it is no run.

    Args:
        path: a run directory (no member), or a folder in its `best`.
        trust: see `Run.open`.
    """
    folder = Path(path).expanduser().absolute()
    if not path_exists(folder):
        folder = folder_registry.find_folder(path, RUN) or folder
    if (folder / CONFIG).is_file():
        return Run.open(folder, trust=trust), None
    if folder.parent.name != BEST or not (folder.parents[1] / CONFIG).is_file():
        return None
    run = Run.open(folder.parents[1], trust=trust)
    member = next((m for m in run.best.members if run.best.folder_of(m).name == folder.name), None)
    return None if member is None else (run, member)


def best_response_config(config: RunConfig, place: str, drawn: bool) -> dict[str, Any]:
    """Return the training config of a best response: the policy's config with it as the opponent.

    A curriculum is removed, because its phases might name other opponents.

    Args:
        config: config that the policy was trained with.
        place: path of the policy.
        drawn: the policy samples its actions.
    """
    values = config.as_mapping()
    values["env"] |= _game(config.env_name).best_response_settings(config.env_name, place, drawn)
    values["training"]["out"] = None
    return {name: section for name, section in values.items() if name != "curriculum"}


def check_game(env_name: str, games: int = 1) -> None:
    """Validate the game and the number of games.

    Raises:
        ConfigError: it is not a game for two players, or `games` is below 1.
    """
    if games < 1:
        raise ConfigError(f"--games {games} is not valid. Give at least 1.")
    _game(env_name)


def _game(env_name: str) -> type[Players]:
    players = get_game_class(env_name)
    if players is None:
        raise ConfigError(
            f"`{env_name}` is not a game for two players. Score its policies with `slipstream "
            "evaluate RUN`, without --games and --opponent."
        )
    return players


def play(
    env_name: str,
    player1: Player,
    player2: Player,
    games: int,
    seed: int,
    *,
    settings: Mapping[str, Any] | None = None,
    backend: str = "auto",
    num_envs: int = MAX_ENVS,
    drawn: bool = False,
) -> MatchResult:
    """Play games with the most likely actions; `player1` is on the left in every second game.

    Game j has the random stream (seed, j, 0), so the number of environments changes no result. The
    player on the left moves first.

    Args:
        env_name: name of a kernel for two players.
        player1: player with a policy.
        player2: a policy or a bot.
        games: number of games.
        seed: seed of the games.
        settings: settings of the kernel; None for those that `player1` was trained with.
        backend: backend that steps the environments.
        num_envs: parallel games.
        drawn: `player2` samples its actions.

    Raises:
        ConfigError: `games` is below 1, or a player does not fit the game.
    """
    check_game(env_name, games)
    assert player1.policy is not None
    trained = {} if player1.run is None else player1.run.config.env_settings
    base = settings if settings is not None else trained
    result, length = np.zeros(games, np.int64), np.zeros(games, np.int64)
    numbers, alike = np.arange(games), False
    for player in range(2):
        seat_games = numbers[numbers % 2 == player]
        if not len(seat_games):
            continue
        environment = environment_against(env_name, base, player, player2, drawn)
        _check_fit(environment, player1)
        players = environment.part(Players)
        alike = players is not None and bool(players.deterministic_opponents)
        size = min(num_envs, len(seat_games))
        with environment.make_eval_envs("train", size, 1, backend, MAX_EVAL_STEPS) as env:
            for first in range(0, len(seat_games), size):
                part = seat_games[first : first + size]
                result[part], length[part] = _block(env, player1.policy, part, seed)
    return MatchResult(player1.name, player2.name, result, numbers % 2 == 0, length, alike)


def environment_against(
    env_name: str, settings: Mapping[str, Any], player: int, opponent: Player, drawn: bool = False
) -> Environment:
    """Load the game for a policy that plays as `player`, 0 or 1, against `opponent`.

    Raises:
        ConfigError: the opponent does not fit the game, or the game does not declare a winner.
    """
    name, game = opponent.path or opponent.name, _game(env_name)
    return game.load_against(env_name, settings, player, name, drawn, opponent.snapshots)


def _check_fit(environment: Environment, player: Player) -> None:
    policy, spec = player.policy, environment.spec
    assert policy is not None
    env_shape, policy_shape = spec.observation_shape, policy.observation_shape
    policy_actions, env_actions = (
        policy.actions.description(),
        ActionMap(spec.action_space).description(),
    )
    if (env_shape, env_actions) != (policy_shape, policy_actions):
        raise ConfigError(
            f"{player.name} has observations {policy_shape} and actions {policy_actions}, but this "
            f"game has {env_shape} and {env_actions}. Choose a policy trained with the same "
            "settings of `env`."
        )


def _block(
    env: VectorEnv, policy: Policy, numbers: NDArray[np.int64], seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return result and length of some games, as seen by the policy."""
    out, env_ids = allocate_buffers(env), np.arange(len(numbers))
    env.begin(env_ids, numbers, seed, out.obs, out.mask)
    running = np.ones(len(numbers), np.bool_)
    result, length = np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.int64)
    t = 0
    while running.any():
        env.step(policy.act_rows(out.obs, mask=out.mask), out, t)
        t += 1
        ended = env.drain_episodes()
        result[ended.e] = ended.metrics["won"] - ended.metrics["lost"]
        length[ended.e] = ended.length
        running[ended.e] = False
    return result, length


def write_match_results(
    run: Run, played: Sequence[MatchResult], seed: int, member: int | None = None
) -> None:
    """Write match results to the run's directory, replacing earlier ones.

    Args:
        member: member of the run whose policy played; None for the best one.
    """
    header = {"seed": seed, "policy": _weights_of(run, member)}
    write_hashed(run.path / _FILE, {**header, "games": [games.as_dict() for games in played]})


def _weights_of(run: Run, member: int | None = None) -> str:
    """Return the sha256 of the weights file of a member's best policy."""
    _, manifest = run.best.load(run.best.highest if member is None else member)
    return str(manifest["files"][STATE]["sha256"])


def read_match_results(run: Run) -> list[dict[str, Any]]:
    """Return the results of `write_match_results` for the best policy: `MatchResult.as_dict` each.

    Empty without a file, or if it is of another policy, such as one before further training.

    Raises:
        CheckpointError: the file is damaged.
    """
    name = shlex.quote(str(run.path))
    remedy = f"Delete it: `slipstream evaluate {name} --games 1000` writes it again."
    content = read_json(run.path / _FILE, CheckpointError, remedy, _SHAPE)
    if content is None or ("policy" in content and content["policy"] != _weights_of(run)):
        return []
    return list(content["games"])
