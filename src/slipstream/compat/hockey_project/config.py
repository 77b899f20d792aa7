"""Config files of the hockey project.

The JSON files have the blocks `curriculum`, `hyperparameters`, `training` and `agent`.
docs/reference/hockey-project.md lists the counterpart of each key, and the differences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from slipstream.core.bounds import Count, Natural, Weight
from slipstream.core.config import Config, validate
from slipstream.core.errors import ConfigError

Mode = Literal["NORMAL", "TRAIN_SHOOTING", "TRAIN_DEFENSE"]

_OPPONENTS = {
    **{"none": "idle", "basic_weak": "weak", "basic_strong": "strong", "self_play": "agent"},
}
# Weight of self-play in phases of bots: the number of outside players must not change.
_NEVER = 1e-12
_MAX_ENVS = 1_024  # upper limit of sub-environments, for the number of timesteps
_LONGEST = {"NORMAL": 251, "TRAIN_SHOOTING": 81, "TRAIN_DEFENSE": 81}  # steps of a game


class _Weighted(Config):
    mode: Mode
    weight: Weight = 1.0


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
        """Return the weights of the modes by name."""
        if self.mode is not None:
            return {self.mode: 1.0}
        return _sum_by_name((part.mode, part.weight) for part in self.mixture or ())


class _Opponent(Config):
    type: Literal["none", "basic_weak", "basic_strong", "self_play", "weighted_mixture"]
    weight: Weight = 1.0
    checkpoint: str | None = None
    deterministic: bool = True
    opponents: tuple[_Opponent, ...] | None = None

    @model_validator(mode="after")
    def _check_weights(self) -> _Opponent:
        parts = self.opponents or ()
        if self.type == "weighted_mixture" and not any(part.weight for part in parts):
            raise ValueError("`opponents` of a weighted_mixture has no weight above 0")
        return self

    def weights(self) -> dict[str, float]:
        """Return the weights by slipstream's names of bots; `agent` is self-play."""
        return _sum_by_name((_OPPONENTS[part.type], weight) for part, weight in self._flatten())

    def past(self) -> dict[str, float]:
        """Return the weights of self-play opponents: snapshots of the learner, or runs."""
        parts = [(part, weight) for part, weight in self._flatten() if part.type == "self_play"]
        return _sum_by_name((part.checkpoint or "snapshots", weight) for part, weight in parts)

    def _flatten(self) -> list[tuple[_Opponent, float]]:
        """Return the opponents of nested mixtures with their weights."""
        if self.type != "weighted_mixture":
            return [(self, 1.0)]
        flat: list[tuple[_Opponent, float]] = []
        for part in self.opponents or ():
            inner = part._flatten()
            total = sum(weight for _, weight in inner)
            flat += [(leaf, part.weight * weight / total) for leaf, weight in inner]
        return flat


def _sum_by_name(weights: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the sum of weights by name."""
    total: dict[str, float] = {}
    for name, weight in weights:
        total[name] = total.get(name, 0.0) + weight
    return total


class _Shaping(Config):
    N: Natural = 600
    K: Natural = 400
    CLOSENESS_START: float = 20.0
    TOUCH_START: float = 15.0
    DIRECTION_START: float = 0.0
    CLOSENESS_FINAL: float = 1.5
    TOUCH_FINAL: float = 1.0
    DIRECTION_FINAL: float = 2.0

    def anneal(self) -> dict[str, Any]:
        """Return the schedules of `env.reward` over a member's episodes in the phase."""
        ends = {
            "closeness": (self.CLOSENESS_START, self.CLOSENESS_FINAL),
            "touch": (self.TOUCH_START, self.TOUCH_FINAL),
            "direction": (self.DIRECTION_START, self.DIRECTION_FINAL),
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
    reward_bonus: None = None
    clear_buffer: bool = True


class _Curriculum(Config):
    phases: tuple[_Phase, ...]

    @model_validator(mode="after")
    def _check_phases(self) -> _Curriculum:
        if not self.phases:
            raise ValueError("`phases` is empty. Give at least one")
        return self


class _Hyperparameters(Config):
    learning_rate: float = 1e-4
    batch_size: Count = 256


class _Training(Config):
    max_episode_steps: Count = 500
    updates_per_step: Annotated[float, Field(gt=0)] = 1.0
    warmup_steps: Natural = 400
    reward_scale: Annotated[float, Field(gt=0)] = 0.1
    train_freq: Count = 1
    checkpoint_save_freq: Count | None = None  # episodes
    checkpoint_frequency: Count | None = None  # timesteps, as the next
    eval_frequency: Count | None = None


class _AgentBlock(Config):
    type: str
    hyperparameters: dict[str, Any] = Field(default_factory=dict)
    checkpoint_path: str | None = None


class HockeyProject(Config):
    """Complete config file of the hockey project."""

    FIXED_KEYS: ClassVar[tuple[str, ...]] = ()

    curriculum: _Curriculum
    hyperparameters: _Hyperparameters = _Hyperparameters()
    training: _Training = _Training()
    agent: _AgentBlock


def recognizes(values: Mapping[str, Any]) -> bool:
    """Return whether a config is the hockey project's."""
    curriculum = values.get("curriculum")
    phases = curriculum.get("phases") if isinstance(curriculum, Mapping) else None
    has_environments = isinstance(phases, list) and any(
        isinstance(phase, Mapping) and "environment" in phase for phase in phases
    )
    return "hyperparameters" in values or has_environments


def differences(values: Mapping[str, Any]) -> str:
    """Return a notice about keys that have another effect in slipstream."""
    agent = values["agent"]  # complete, because `to_sections` has validated the file
    kind, hyperparameters = agent["type"], agent.get("hyperparameters", {})
    notices = [
        "a phase ends with the iteration that reaches its episodes, and games cut by that are not "
        "counted"
    ]
    if kind in ("DDDQN", "DDQN_PER") and hyperparameters.get("use_huber_loss") is not True:
        notices.append("the loss is Huber's instead of the squared error (`use_huber_loss`)")
    if hyperparameters.get("noise", "normal") != "normal":
        notices.append(
            f"exploration noise is independent per timestep instead of {hyperparameters['noise']}"
        )
    return f"Differences from the hockey project: {'; '.join(notices)}."


def to_sections(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a config of the hockey project to slipstream's sections.

    Raises:
        ConfigError: a key is unknown or has no counterpart.
    """
    if unsupported := _find_unsupported(values):
        raise ConfigError(
            f"This file of the hockey project is not supported: {'; '.join(unsupported)}."
        )
    theirs = validate(HockeyProject, values)
    phases = theirs.curriculum.phases
    if len({phase.environment.keep_mode for phase in phases}) > 1:
        raise ConfigError(
            "`keep_mode` differs between phases, but it changes the observation space. Use one "
            "value in all phases."
        )
    if theirs.training.max_episode_steps < 250:
        raise ConfigError(
            f"`training.max_episode_steps` must be at least 250, got "
            f"{theirs.training.max_episode_steps}: a game has 251 steps, or 81 in the training "
            "modes. Set it to 251."
        )
    if theirs.agent.checkpoint_path is not None:
        raise ConfigError(
            "`agent.checkpoint_path` is a checkpoint of another program, which cannot be resumed. "
            "Remove it."
        )
    env = {
        "name": "hockey",
        "puck_hold": phases[0].environment.keep_mode,
        "num_action_levels": _num_action_levels(theirs),
        "opponents": {"weak": 1.0},  # in evaluations, as in the hockey project
    }
    past = _past(phases)
    if past:
        env |= {"opponents": {"agent": 1.0}, "self_play": {"opponents": past}}
    total = sum(phase.episodes for phase in phases)
    longest = sum(p.episodes * max(_LONGEST[m] for m in p.environment.weights()) for p in phases)
    # The last phase ends the run. Running games are discarded at the end of every phase.
    limit = longest + (len(phases) + 1) * _MAX_ENVS * 251
    training: dict[str, Any] = {"total_timesteps": limit}
    if theirs.training.checkpoint_save_freq is not None:
        every = theirs.training.checkpoint_save_freq
        training |= {"checkpoint_every": min(1.0, every / total), "policy_every_episodes": every}
    elif theirs.training.checkpoint_frequency is not None:
        training["checkpoint_every"] = min(1.0, theirs.training.checkpoint_frequency / longest)
    scale, eval_frequency = theirs.training.reward_scale, theirs.training.eval_frequency
    return {
        "env": env,
        "agent": _agent(theirs),
        "training": training,
        **({} if eval_frequency is None else {"evaluation": {"every_steps": eval_frequency}}),
        "curriculum": {
            "phases": [_phase(phase, i, scale, bool(past)) for i, phase in enumerate(phases)],
        },
    }


def _past(phases: tuple[_Phase, ...]) -> dict[str, float]:
    """Return the self-play opponents, which must be the same in all phases."""
    pools = [past for phase in phases if (past := phase.opponent.past())]
    for name in (name for past in pools for name in past):
        if name.endswith((".pt", ".pth")):
            raise ConfigError(
                f"`checkpoint: {name}` is a network of another program. Give a run of slipstream, "
                "such as results/runs/models/RUN, or null for snapshots of the learner."
            )
    if any(past != pools[0] for past in pools):
        raise ConfigError(
            "Opponents of type `self_play` differ between phases, but a run has one pool of "
            "opponents. Use the same `checkpoint` and weights in all phases, or train one run per "
            "phase."
        )
    return pools[0] if pools else {}


def _phase(phase: _Phase, number: int, scale: float, self_play: bool) -> dict[str, Any]:
    opponents = phase.opponent.weights()
    env: dict[str, Any] = {
        "mode": {name.lower(): weight for name, weight in phase.environment.weights().items()},
        "opponents": {"agent": _NEVER, **opponents} if self_play else opponents,
        "reward": {"scale": scale},
    }
    return {
        "name": phase.name or f"phase {number + 1}",
        "episodes": phase.episodes,
        "env": env,
        "anneal": phase.reward_shaping.anneal() if phase.reward_shaping else {},
        "clear_replay": phase.clear_buffer,
    }


def _find_unsupported(values: Mapping[str, Any]) -> list[str]:
    """Return the problems of a file that has no counterpart, each with its key and a fix."""
    problems = []
    agent, curriculum = values.get("agent"), values.get("curriculum")
    agent = agent if isinstance(agent, Mapping) else {}
    kind = agent.get("type")
    if isinstance(kind, str) and kind not in _BY_TYPE:
        problems.append(
            f"`agent.type` must be one of {', '.join(_BY_TYPE)}, got {kind} (docs/guides/agents.md)"
        )
    searched = _list_keys(values.get("hyperparameters"), "hyperparameters")
    searched += _list_keys(agent.get("hyperparameters"), "agent.hyperparameters")
    if searched:
        problems.append(
            f"{', '.join(searched)} are lists of values: give one value each, or search with "
            "`slipstream tune` (docs/guides/studies.md)"
        )
    if curriculum is None:
        problems.append("`curriculum` is missing: the file has settings of an agent only")
    phases = curriculum.get("phases") if isinstance(curriculum, Mapping) else None
    networks: dict[str, str] = {}  # first key by type of opponent
    for i, phase in enumerate(phases if isinstance(phases, list) else ()):
        if not isinstance(phase, Mapping):
            continue
        where = f"`curriculum.phases.{i}"
        for kind in _kinds(phase.get("opponent")):
            if kind in _NETWORKS:
                networks.setdefault(kind, f"{where}.opponent`")
        if phase.get("reward_bonus") is not None:
            problems.append(f"{where}.reward_bonus` has no counterpart: remove it")
    if networks:
        types = ", ".join(f"{kind} ({where})" for kind, where in networks.items())
        problems.append(
            f"opponents of type {types} are networks of another program: train against snapshots "
            "of the learner, `type: self_play` (docs/guides/self-play.md)"
        )
    return problems


def _list_keys(settings: Any, where: str) -> list[str]:
    """Return the keys with a list of values to search; layer widths are lists by themselves."""
    if not isinstance(settings, Mapping):
        return []
    return [
        f"`{where}.{key}`"
        for key, value in settings.items()
        if isinstance(value, list)
        and (key not in ("hidden_dim", "latent_dim") or any(isinstance(v, list) for v in value))
    ]


def _kinds(opponent: Any) -> list[str]:
    """Return the types of an opponent and of those in its mixture."""
    if not isinstance(opponent, Mapping):
        return []
    parts = opponent.get("opponents")
    kinds = [kind for part in parts for kind in _kinds(part)] if isinstance(parts, list) else []
    return [*kinds, str(opponent.get("type"))]


_NETWORKS = ("archive", "run_checkpoints")


def _num_action_levels(theirs: HockeyProject) -> int:
    if _BY_TYPE[theirs.agent.type].name != "dqn":
        return 0
    return int(theirs.agent.hyperparameters.get("action_fineness", 2))


class _Agent(NamedTuple):
    """Counterpart of an agent of the hockey project.

    Attributes:
        name: slipstream's name of the agent.
        keys: slipstream's names of its keys; None: converted elsewhere, or without a counterpart.
        defaults: the hockey project's defaults, by slipstream's names.
    """

    name: str
    keys: dict[str, str | None]
    defaults: dict[str, Any]


_SHARED: dict[str, str | None] = {
    "discount": "gamma",
    "hidden_dim": "net_arch",
    "learning_rate": None,  # the block `hyperparameters` defines both
    "batch_size": None,
}
_VALUES: dict[str, str | None] = {
    **_SHARED,
    "target_update_freq": "target_update_interval",
    "eps": None,  # the next three: see `_exploration`
    "eps_min": None,
    "eps_decay": None,
    "grad_clip": "max_grad_norm",
    "action_fineness": None,  # of the environment
    "use_huber_loss": None,  # see `differences`
    "reward_clip": None,  # see `_agent`
    "buffer_size": "buffer_size",
}
_DDDQN: dict[str, Any] = {
    **{"double": True, "dueling": True, "observation_normalization": False},
    **{"max_grad_norm": 1.0, "target_update_interval": 50, "net_arch": [256, 256]},
}
_RANKED = {"per_alpha": "priority_exponent", "per_beta": "importance_exponent"}
_BY_TYPE = {
    "DDDQN": _Agent("dqn", _VALUES, _DDDQN),
    "DDQN_PER": _Agent("dqn", {**_VALUES, "use_per": "prioritised", **_RANKED}, _DDDQN),
    "SAC": _Agent(
        "sac",
        {
            **_SHARED,
            "tau": "tau",
            "alpha": None,  # see `_agent`
            "learn_alpha": None,  # see `_agent`
            "noise": None,  # see `differences`
            "max_episode_steps": None,  # parameter of the noise
        },
        {"net_arch": [256, 256, 256]},
    ),
    "TD3": _Agent(
        "td3",
        {
            **_SHARED,
            "latent_dim": "net_arch",
            "tau": "tau",
            "expl_noise": "exploration_noise",
            "policy_noise": "target_policy_noise",
            "noise_clip": "target_noise_clip",
            "policy_freq": "target_update_interval",
            "priority_replay": "prioritised",
            "normalize_obs": "observation_normalization",
            "max_action": None,  # see `_agent`
        },
        {"net_arch": [256, 256]},
    ),
    "PPO": _Agent("ppo", _SHARED, {}),  # not part of the hockey project
}


def _agent(theirs: HockeyProject) -> dict[str, Any]:
    kind, hyperparameters = theirs.agent.type, theirs.agent.hyperparameters
    counterpart = _BY_TYPE[kind]
    unknown = sorted(set(hyperparameters) - set(counterpart.keys))
    if unknown:
        raise ConfigError(
            f"`agent.hyperparameters.{unknown[0]}` is not a known key of {kind}. Known keys: "
            f"{', '.join(sorted(counterpart.keys))}."
        )
    for key, required in (("reward_clip", None), ("max_action", 1.0)):
        if hyperparameters.get(key, required) != required:
            raise ConfigError(
                f"`agent.hyperparameters.{key}` must be {required}, got {hyperparameters[key]!r}: "
                "actions are in [-1, 1] and rewards are not clipped. Remove it."
            )
    agent: dict[str, Any] = {
        "name": counterpart.name,
        "learning_rate": theirs.hyperparameters.learning_rate,
        **counterpart.defaults,
    }
    if kind == "PPO":
        agent["batch_size"] = theirs.hyperparameters.batch_size
    else:
        agent |= {
            "batch_size": theirs.hyperparameters.batch_size,
            "utd_ratio": theirs.training.updates_per_step / theirs.training.train_freq,
            "learning_starts": theirs.training.warmup_steps,
            "buffer_size": 1_000_000,
        }
    for key, name in counterpart.keys.items():
        if name and key in hyperparameters:
            agent[name] = hyperparameters[key]
    if counterpart.name == "dqn":
        agent |= _exploration(theirs)
    if kind == "SAC" and not hyperparameters.get("learn_alpha", True):
        agent["ent_coef"] = hyperparameters.get("alpha", 0.2)  # a learned one starts at 1 in both
    return agent


def _exploration(theirs: HockeyProject) -> dict[str, Any]:
    """Convert an epsilon that decays by a factor per episode to a linear one of equal length."""
    values = theirs.agent.hyperparameters
    first, last = float(values.get("eps", 1.0)), float(values.get("eps_min", 0.01))
    decay = values.get("eps_decay", 0.9995)
    if decay is None:  # constant epsilon
        return {
            "exploration_initial_eps": first,
            "exploration_final_eps": first,
            "exploration_steps": 0,
        }
    if not (0.0 < decay < 1.0 and 0.0 < last <= first):
        raise ConfigError(
            "`agent.hyperparameters` must have a decreasing epsilon, got "
            f"eps={first}, eps_min={last} and eps_decay={decay}. Choose eps >= eps_min > 0 and "
            "0 < eps_decay < 1."
        )
    remaining = math.ceil(math.log(last / first) / math.log(decay))  # episodes
    steps = 0
    for phase in theirs.curriculum.phases:
        longest = max(_LONGEST[mode] for mode in phase.environment.weights())
        steps += min(remaining, phase.episodes) * longest
        remaining -= min(remaining, phase.episodes)
    return {
        "exploration_initial_eps": first,
        "exploration_final_eps": last,
        "exploration_steps": steps,
    }
