"""Config files of the hockey project whose trainer slipstream's replaces, read as they are.

Their JSON has the blocks `curriculum`, `hyperparameters`, `training` and `agent`; docs/hockey.md
says what each key becomes, and what of theirs is done otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from slipstream.core.bounds import Count, Natural
from slipstream.core.config import Config, validate
from slipstream.core.errors import ConfigError

Mode = Literal["NORMAL", "TRAIN_SHOOTING", "TRAIN_DEFENSE"]

_OPPONENTS = {"none": "idle", "basic_weak": "weak", "basic_strong": "strong"}
_COPIES = 1_024  # as many as anybody trains with
_LONGEST = {"NORMAL": 251, "TRAIN_SHOOTING": 81, "TRAIN_DEFENSE": 81}  # steps of a game


class _Weighted(Config):
    mode: Mode
    weight: float = 1.0


class _Environment(Config):
    mode: Mode | None = None
    mixture: tuple[_Weighted, ...] | None = None
    keep_mode: bool = True

    @model_validator(mode="after")
    def _one(self) -> _Environment:
        if (self.mode is None) == (not self.mixture):
            raise ValueError("give either `mode` or `mixture`")
        return self

    def weights(self) -> dict[str, float]:
        """Of the modes, by their names."""
        if self.mode is not None:
            return {self.mode: 1.0}
        return {one.mode: one.weight for one in self.mixture or ()}


class _Opponent(Config):
    type: Literal["none", "basic_weak", "basic_strong", "self_play", "weighted_mixture"]
    weight: float = 1.0
    checkpoint: str | None = None
    deterministic: bool = True
    opponents: tuple[_Opponent, ...] = ()

    def weights(self, where: str) -> dict[str, float]:
        """Of the bots, by our names."""
        if self.type == "weighted_mixture":
            if not self.opponents:
                raise ConfigError(f"`{where}.opponents` of a weighted_mixture is empty.")
            total: dict[str, float] = {}
            for one in self.opponents:
                for name in one.weights(where):
                    total[name] = total.get(name, 0.0) + one.weight
            return total
        if self.type == "self_play":
            raise ConfigError(
                f"`{where}`: opponents of type self_play are frozen networks, which this file "
                "names by checkpoints of another program. Train with `env.self_play` of a config "
                "of our own; docs/hockey.md shows one."
            )
        return {_OPPONENTS[self.type]: 1.0}


class _Shaping(Config):
    N: Natural
    K: Natural
    CLOSENESS_START: float = 0.0
    TOUCH_START: float = 0.0
    CLOSENESS_FINAL: float = 0.0
    TOUCH_FINAL: float = 0.0
    DIRECTION_FINAL: float = 0.0

    def anneal(self) -> dict[str, Any]:
        """Weights of our `env.reward` over a member's episodes in the phase."""
        ends = {
            "closeness": (self.CLOSENESS_START, self.CLOSENESS_FINAL),
            "touch": (self.TOUCH_START, self.TOUCH_FINAL),
            "direction": (0.0, self.DIRECTION_FINAL),
        }
        return {
            f"reward.{name}": {"start": start, "final": final, "hold": self.N, "over": self.K}
            for name, (start, final) in ends.items()
            if start or final
        }


class _Phase(Config):
    name: str = ""
    episodes: Count
    environment: _Environment
    opponent: _Opponent
    reward_shaping: _Shaping | None = None
    clear_buffer: bool = False


class _Curriculum(Config):
    phases: tuple[_Phase, ...]

    @model_validator(mode="after")
    def _some(self) -> _Curriculum:
        if not self.phases:
            raise ValueError("there is no phase: give one at least")
        return self


class _Hyperparameters(Config):
    learning_rate: float
    batch_size: Count


class _Training(Config):
    max_episode_steps: Count = 251
    updates_per_step: Annotated[float, Field(gt=0)] = 1.0
    warmup_steps: Natural = 0
    reward_scale: Annotated[float, Field(gt=0)] = 1.0
    checkpoint_save_freq: Count | None = None
    train_freq: Count = 1


class _AgentBlock(Config):
    type: Literal["DDDQN", "SAC", "PPO"]
    hyperparameters: dict[str, Any] = Field(default_factory=dict)
    checkpoint_path: str | None = None


class HockeyProject(Config):
    """The whole file."""

    given: ClassVar[tuple[str, ...]] = ()

    curriculum: _Curriculum
    hyperparameters: _Hyperparameters
    training: _Training = _Training()
    agent: _AgentBlock


def is_hockey_project(values: Mapping[str, Any]) -> bool:
    """Whether the blocks are theirs and not ours."""
    phases = values.get("curriculum")
    listed = phases.get("phases") if isinstance(phases, Mapping) else None
    theirs = isinstance(listed, list) and any(
        isinstance(one, Mapping) and "environment" in one for one in listed
    )
    return "hyperparameters" in values or theirs


def sections_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Our sections for their file.

    Raises:
        ConfigError: a key that nobody reads, or something that is done otherwise here.
    """
    theirs = validate(HockeyProject, values)
    phases = theirs.curriculum.phases
    if len({phase.environment.keep_mode for phase in phases}) > 1:
        raise ConfigError("`keep_mode` differs between phases, which changes what is seen.")
    if theirs.training.max_episode_steps < 250:
        raise ConfigError(
            f"`training.max_episode_steps` is {theirs.training.max_episode_steps}: a game has 251 "
            "steps, 81 in the training modes, and is not cut shorter here. Write 251."
        )
    if theirs.agent.checkpoint_path is not None:
        raise ConfigError(
            "`agent.checkpoint_path` names a checkpoint of another program, which cannot be gone "
            "on from: leave it out."
        )
    fineness = _fineness(theirs)
    env = {
        "name": "hockey",
        "keep": phases[0].environment.keep_mode,
        "action_fineness": fineness,
        "opponents": {"weak": 1.0},  # evaluations; theirs play the weak bot, too
    }
    total = sum(phase.episodes for phase in phases)
    most = sum(p.episodes * max(_LONGEST[m] for m in p.environment.weights()) for p in phases)
    # The last phase ends a run; what copies are in when a phase changes or ends counts for nothing.
    training: dict[str, Any] = {"total_steps": most + (len(phases) + 1) * _COPIES * 251}
    if theirs.training.checkpoint_save_freq is not None:
        training["checkpoint_every"] = min(1.0, theirs.training.checkpoint_save_freq / total)
    scale = theirs.training.reward_scale
    return {
        "env": env,
        "agent": _agent(theirs),
        "training": training,
        "curriculum": {
            "phases": [_phase(phase, i, scale) for i, phase in enumerate(phases)],
        },
    }


def _phase(phase: _Phase, number: int, scale: float) -> dict[str, Any]:
    where = f"curriculum.phases.{number}.opponent"
    env: dict[str, Any] = {
        "mode": {name.lower(): weight for name, weight in phase.environment.weights().items()},
        "opponents": phase.opponent.weights(where),
        "reward": {"scale": scale},
    }
    return {
        "name": phase.name or f"phase {number + 1}",
        "episodes": phase.episodes,
        "env": env,
        "anneal": phase.reward_shaping.anneal() if phase.reward_shaping else {},
        "clear_replay": phase.clear_buffer,
    }


def _fineness(theirs: HockeyProject) -> int:
    if theirs.agent.type != "DDDQN":
        return 0
    return int(theirs.agent.hyperparameters.get("action_fineness", 2))


# What their agents call our fields. None: known, and passed over for the reason beside it.
_SHARED = {"gamma": "discount", "buffer_size": "replay_size", "discount": "discount"}
_BY_TYPE: dict[str, tuple[str, dict[str, str | None]]] = {
    "DDDQN": (
        "dqn",
        {
            **_SHARED,
            "hidden_dim": "widths",
            "hidden_sizes": "widths",
            "hidden_layers": "widths",
            "target_update": "target_every",
            "target_update_freq": "target_every",
            "eps": "exploration_initial",
            "eps_start": "exploration_initial",
            "eps_min": "exploration_final",
            "eps_end": "exploration_final",
            "eps_decay": None,  # by episodes: see `_exploration`
            "grad_clip": "max_grad_norm",
            "action_fineness": None,  # of the environment
            "use_huber": None,  # the loss is Huber's
            "loss": None,
        },
    ),
    "SAC": (
        "sac",
        {
            **_SHARED,
            "hidden_dim": "widths",
            "hidden_sizes": "widths",
            "hidden_layers": "widths",
            "tau": "target_rate",
            "alpha": "initial_temperature",
            "auto_alpha": None,  # the temperature is learned
            "target_entropy": "target_entropy",
        },
    ),
    "PPO": ("ppo", {"gamma": "discount", "hidden_sizes": "widths", "hidden_dim": "widths"}),
}


def _agent(theirs: HockeyProject) -> dict[str, Any]:
    kind = theirs.agent.type
    name, names = _BY_TYPE[kind]
    agent: dict[str, Any] = {"name": name, "learning_rate": theirs.hyperparameters.learning_rate}
    if kind == "PPO":
        agent["minibatch"] = theirs.hyperparameters.batch_size
    else:
        agent |= {
            "batch": theirs.hyperparameters.batch_size,
            "updates_per_step": theirs.training.updates_per_step / theirs.training.train_freq,
            "learning_starts": theirs.training.warmup_steps,
            "replay_size": 1_000_000,
        }
    if kind == "DDDQN":
        agent |= {"double": True, "dueling": True, "max_grad_norm": 1.0, "target_every": 2_000}
        agent |= _exploration(theirs)
    for key, value in theirs.agent.hyperparameters.items():
        if key not in names:
            known = ", ".join(sorted(names))
            raise ConfigError(
                f"`agent.hyperparameters.{key}` is not a known key of {kind}; known keys: {known}."
            )
        ours = names[key]
        if ours is not None:
            agent[ours] = value
    return agent


def _exploration(theirs: HockeyProject) -> dict[str, Any]:
    """Their epsilon falls by a factor in every episode, ours linearly over as many steps."""
    own = theirs.agent.hyperparameters
    first, last = float(own.get("eps", own.get("eps_start", 1.0))), 0.1
    last = float(own.get("eps_min", own.get("eps_end", last)))
    decay = float(own.get("eps_decay", 0.9995))
    if not (0.0 < decay < 1.0 and 0.0 < last < first):
        raise ConfigError(
            "`agent.hyperparameters`: epsilon must fall: eps > eps_min > 0 and 0 < eps_decay < 1."
        )
    left = math.ceil(math.log(last / first) / math.log(decay))
    steps = 0
    for phase in theirs.curriculum.phases:
        longest = max(_LONGEST[mode] for mode in phase.environment.weights())
        steps += min(left, phase.episodes) * longest
        left -= min(left, phase.episodes)
    return {"exploration_initial": first, "exploration_final": last, "exploration_steps": steps}
