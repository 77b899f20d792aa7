"""Whole games of policies for two: against another one or a bot, and of everybody in turn."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.core.safe_io import path_exists, read_json
from slipstream.core.storage import folder_registry
from slipstream.core.storage.atomic_io import write_hashed
from slipstream.core.storage.checkpoint import STATE, strip_prefix
from slipstream.core.storage.status_file import RUN
from slipstream.core.text import did_you_mean
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

MAX_ENVS = 1_024  # at once; their number changes nothing but speed
DETERMINISTIC_NOTE = (
    "all games of a side are the same one, as neither the game nor the players draw anything"
)
_FILE = "games.json"
_OPPONENTS = "opponents."  # in a checkpoint
_SHARE: list[Any] = [(int, float)]  # with both ends of its interval
_SHAPE: dict[str, Any] = {
    "games": [
        {
            **{"two": str, "games": int, "mean_length": (int, float)},
            **dict.fromkeys(("won", "drawn", "lost"), _SHARE),
        }
    ]
}


@dataclass(frozen=True)
class Player:
    """Who plays: a policy, or a bot by its name.

    Attributes:
        name: in tables.
        policy: whose games are counted; the second player needs none.
        run: of the policy; member: of the run, None for the best one.
        place: of a policy on disk; None for a bot.
        past: snapshots of a run, if those play.
    """

    name: str
    policy: Policy | None = None
    run: Run | None = None
    path: str | None = None
    snapshots: Any = None
    member: int | None = None


@dataclass(frozen=True)
class MatchResult:
    """J games as `one` sees them.

    Attributes:
        one, two: the players' names.
        result: int64 [J]: 1 won, 0 drawn, -1 lost.
        left: bool [J], where `one` played.
        length: int64 [J], steps.
        alike: all games of a side are the same one, as neither the game nor the players draw.
    """

    one: str
    two: str
    result: NDArray[np.int64]
    left: NDArray[np.bool_]
    length: NDArray[np.int64]
    deterministic: bool = False

    def shares(self) -> dict[str, tuple[float, float, float]]:
        """Share of games won, drawn and lost, each with the ends of `share_interval`."""
        names = {"won": 1, "drawn": 0, "lost": -1}
        counts = {name: int((self.result == value).sum()) for name, value in names.items()}
        total = len(self.result)
        return {
            name: share_interval(count, total, self.deterministic) for name, count in counts.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a file."""
        decided, steps = int((self.result != 0).sum()), int(self.length.sum())
        sides = {"won_left": self.left, "won_right": ~self.left}
        return {
            "one": self.one,
            "two": self.two,
            "games": len(self.result),
            **{name: list(share) for name, share in self.shares().items()},
            **{n: float((self.result[at] == 1).mean()) for n, at in sides.items() if at.any()},
            "decided_per_1000_steps": 1000.0 * decided / steps,
            "mean_length": float(self.length.mean()),
            "alike": self.deterministic,
        }


def wilson(count: int, total: int, z: float = 1.959964) -> tuple[float, float, float]:
    """A share and the ends of its 95 % interval (Wilson 1927)."""
    share, square = count / total, z * z / total
    middle = share + square / 2.0
    half = z * math.sqrt(share * (1.0 - share) / total + square / (4.0 * total))
    scale = 1.0 + square
    return share, max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def share_interval(count: int, total: int, alike: bool = False) -> tuple[float, float, float]:
    """A share of games and the ends of its 95 % interval (Wilson): itself where all are `alike`."""
    return (count / total,) * 3 if alike else wilson(count, total)


def load_player(path: str | Path | Run, member: int | None = None) -> Player:
    """The policy that validation chose in a run, of the best member unless one is given."""
    run = path if isinstance(path, Run) else Run.open(path)
    if member is None:
        return Player(run.path.name, run.best_policy(), run, str(run.path))
    folder = run.best.folder_of(member)
    name = f"{run.path.name}/{folder.name}"
    return Player(name, run.best_policy(member), run, str(folder), member=member)


def load_learner(
    path: str | Path | Run, member: int | None = None, trust: bool = False
) -> tuple[RunConfig, Player]:
    """A policy for two, of a run or handed on by one, and the config that it was trained under.

    Args:
        path: a run, a folder in its `best`, or the folder of a policy that has a config.
        member: of the run; the best one's policy unless given.
        trust: as for `Run.open`.

    Raises:
        ConfigError: it is no policy for two, or a member is named of what is one policy.
        CheckpointError: there is no policy yet, or it is damaged.
    """
    run, own = (path, None) if isinstance(path, Run) else find_run(path, trust) or (None, None)
    deployed = None if run is not None else deployed_folder(Path(str(path)))
    if member is not None and (own is not None or deployed is not None):
        raise ConfigError(f"{path} is one policy: leave out --member, or give its run's directory.")
    if deployed is not None:
        found = DeployedPolicy.open(deployed, trust)
        check_game(found.config.env_name)
        return found.config, Player(deployed.absolute().name, found.policy, path=str(deployed))
    run = run or Run.open(str(path))  # says what is wrong with it
    check_game(run.config.env_name)
    return run.config, load_player(run, own if member is None else member)


def list_bots(env_name: str) -> list[str]:
    """Opponents that need no training: a game's own, else `random`; none where it is no game."""
    players = get_game_class(env_name)
    return [] if players is None else players.bots(env_name)


def load_snapshots(run: Run) -> Player:
    """The snapshots that the last checkpoint of a run's best member has, met as in training.

    Raises:
        ConfigError: it was not trained against any.
    """
    member, found = run.best.highest, run.load_checkpoint()
    tensors = {} if found is None else found[0]
    state = {k: v[member : member + 1] for k, v in strip_prefix(_OPPONENTS, tensors).items()}
    game = _game(run.config.env_name)
    past = game.past(run.config.env_settings, run.best_policy(member), state)
    if past is None:
        raise ConfigError(
            f"{run.path} was not trained against snapshots of its own, and has none: name another "
            "opponent."
        )
    return Player(SNAPSHOTS, snapshots=past)


def load_opponent(env_name: str, text: str, trust: bool = False) -> Player:
    """A bot by its name; a trained policy by a run's directory, its own folder, or an ONNX file.

    Args:
        env_name: of the game.
        text: which one.
        trust: see `Run.open`; only settings of the game are read from a run's config, and only
            where the policy is the first player.

    Raises:
        ConfigError: it is none of these, or of another game.
        CheckpointError: the run has no policy yet.
    """
    check_game(env_name)
    known = list_bots(env_name)
    if text in known:
        return Player(text)
    if not path_exists(Path(text).expanduser()) and folder_registry.find_folder(text, RUN) is None:
        game = get_kind(env_name).short_name
        raise ConfigError(
            f"There is no opponent `{text}`: it is neither a bot of `{game}` nor the directory of "
            f"a run; {did_you_mean(text, known)}"
        )
    found = find_run(text, trust)
    if found is None:
        return Player(short_name(text), path=text)
    return load_player(*found)


def find_run(path: str | Path, trust: bool = False) -> tuple[Run, int | None] | None:
    """The run that a path means, and the member whose own folder it is; None where it means none.

    Args:
        path: a run's directory (no member), or a folder in its `best`.
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
    own = next((m for m in run.best.members if run.best.folder_of(m).name == folder.name), None)
    return None if own is None else (run, own)


def best_response_config(config: RunConfig, place: str, drawn: bool) -> dict[str, Any]:
    """The config under which a best response to a policy is trained: the policy's own, with it in
    the other seat, and without a curriculum, whose phases might name others.

    Args:
        config: that the policy was trained under.
        place: of the policy on disk.
        drawn: it draws its actions.
    """
    values = config.as_mapping()
    values["env"] |= _game(config.env_name).best_response_settings(config.env_name, place, drawn)
    values["training"]["out"] = None
    return {name: section for name, section in values.items() if name != "curriculum"}


def check_game(env_name: str, games: int = 1) -> None:
    """Refuses what is no game of two, and to play none of it.

    Raises:
        ConfigError: nobody can act in a second seat of it, or `games` is below 1.
    """
    if games < 1:
        raise ConfigError(f"--games {games}: give 1 or more.")
    _game(env_name)


def _game(env_name: str) -> type[Players]:
    players = get_game_class(env_name)
    if players is None:
        raise ConfigError(
            f"`{env_name}` is no game for two: `slipstream evaluate RUN` without --games and "
            "--opponent scores its policies."
        )
    return players


def play(
    env_name: str,
    one: Player,
    two: Player,
    games: int,
    seed: int,
    *,
    settings: Mapping[str, Any] | None = None,
    backend: str = "auto",
    num_envs: int = MAX_ENVS,
    drawn: bool = False,
) -> MatchResult:
    """Plays `games` games with the most likely actions, `one` on the left in every other one.

    Game j has the random stream (seed, j, 0), whichever copy plays it: the number of copies changes
    nothing. On the left, or first to move, is who has seat 0.

    Args:
        env_name: of a kernel for two.
        one: has a policy.
        two: a policy or a bot.
        games: how many.
        seed: of the games.
        settings: of the kernel; those that `one` was trained under unless given.
        backend: how the copies are stepped.
        copies: at once.
        drawn: `two` draws its actions.

    Raises:
        ConfigError: no game is asked for, or a player does not fit the game.
    """
    check_game(env_name, games)
    assert one.policy is not None
    trained = {} if one.run is None else one.run.config.env_settings
    base = settings if settings is not None else trained
    result, length = np.zeros(games, np.int64), np.zeros(games, np.int64)
    numbers, alike = np.arange(games), False
    for seat in range(2):
        own = numbers[numbers % 2 == seat]
        if not len(own):
            continue
        environment = environment_against(env_name, base, seat, two, drawn)
        _check_fit(environment, one)
        players = environment.part(Players)
        alike = players is not None and bool(players.deterministic_opponents)
        size = min(num_envs, len(own))
        with environment.make_eval_envs("train", size, 1, backend, MAX_EVAL_STEPS) as env:
            for first in range(0, len(own), size):
                part = own[first : first + size]
                result[part], length[part] = _block(env, one.policy, part, seed)
    return MatchResult(one.name, two.name, result, numbers % 2 == 0, length, alike)


def environment_against(
    env_name: str, settings: Mapping[str, Any], seat: int, two: Player, drawn: bool = False
) -> Environment:
    """The game as a policy plays it that has `seat` in it and `two`, `drawn` or not, beside it.

    Raises:
        ConfigError: `two` does not fit the game, or the game does not say who won.
    """
    met, game = two.path or two.name, _game(env_name)
    return game.load_against(env_name, settings, seat, met, drawn, two.snapshots)


def _check_fit(environment: Environment, player: Player) -> None:
    policy, spec = player.policy, environment.spec
    assert policy is not None
    here, theirs = spec.observation_shape, policy.observation_shape
    acts, wanted = policy.actions.description(), ActionMap(spec.action_space).description()
    if (here, wanted) != (theirs, acts):
        raise ConfigError(
            f"{player.name} sees {theirs} numbers and acts in {acts}; this game shows {here} and "
            f"takes {wanted}: choose a policy that was trained with the same settings of `env`."
        )


def _block(
    env: VectorEnv, policy: Policy, numbers: NDArray[np.int64], seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Result and length of some games, as the policy sees them."""
    out, copies = allocate_buffers(env), np.arange(len(numbers))
    env.begin(copies, numbers, seed, out.obs, out.mask)
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
    """Keeps what came of games in the run's directory, in place of what was there.

    Args:
        member: of the run, whose policy played; the best one unless given.
    """
    said = {"seed": seed, "policy": _weights_of(run, member)}
    write_hashed(run.path / _FILE, {**said, "games": [games.as_dict() for games in played]})


def _weights_of(run: Run, member: int | None = None) -> str:
    """Which weights a member's best policy has: the sha256 of their file."""
    _, manifest = run.best.load(run.best.highest if member is None else member)
    return str(manifest["files"][STATE]["sha256"])


def read_match_results(run: Run) -> list[dict[str, Any]]:
    """What `write_match_results` wrote of the best policy: `Games.as_dict` for each opponent.

    Nothing without a file, or where another policy played: another member's, or one that a longer
    training has bettered.

    Raises:
        CheckpointError: the file is damaged.
    """
    name = shlex.quote(str(run.path))
    remedy = f"Delete it: `slipstream evaluate {name} --games 1000` writes it again."
    found = read_json(run.path / _FILE, CheckpointError, remedy, _SHAPE)
    if found is None or ("policy" in found and found["policy"] != _weights_of(run)):
        return []
    return list(found["games"])
