"""Config files of the hockey project whose trainer slipstream's replaces, read as they are.

Their JSON has the blocks `curriculum`, `hyperparameters`, `training` and `agent`;
docs/reference/hockey-project.md lists the keys and the intended differences.
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
_NEVER = 1e-12  # weight of self-play in phases of bots: how many act from outside may not change
_COPIES = 1_024  # as many as anybody trains with
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
        """Of the modes, by their names."""
        if self.mode is not None:
            return {self.mode: 1.0}
        return _summed((one.mode, one.weight) for one in self.mixture or ())


class _Opponent(Config):
    type: Literal["none", "basic_weak", "basic_strong", "self_play", "weighted_mixture"]
    weight: Weight = 1.0
    checkpoint: str | None = None
    deterministic: bool = True
    opponents: tuple[_Opponent, ...] | None = None

    @model_validator(mode="after")
    def _somebody(self) -> _Opponent:
        if self.type == "weighted_mixture" and not any(one.weight for one in self.opponents or ()):
            raise ValueError("`opponents` of a weighted_mixture names nobody with a weight above 0")
        return self

    def weights(self) -> dict[str, float]:
        """Of the bots, by our names; `agent` is whom self-play names."""
        return _summed((_OPPONENTS[one.type], weight) for one, weight in self._met())

    def past(self) -> dict[str, float]:
        """Weights of what self-play names: snapshots of one's own, or runs."""
        named = ((one.checkpoint, weight) for one, weight in self._met() if one.type == "self_play")
        return _summed((place or "snapshots", weight) for place, weight in named)

    def _met(self) -> list[tuple[_Opponent, float]]:
        """Who is met, by weight: of a mixture within a mixture, its own weight times the share."""
        if self.type != "weighted_mixture":
            return [(self, 1.0)]
        found: list[tuple[_Opponent, float]] = []
        for one in self.opponents or ():
            inner = one._met()
            total = sum(weight for _, weight in inner)
            found += [(who, one.weight * weight / total) for who, weight in inner]
        return found


def _summed(weights: Iterable[tuple[str, float]]) -> dict[str, float]:
    """By name; who is named twice has both weights."""
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
        """Weights of our `env.reward` over a member's episodes in the phase."""
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
    def _some(self) -> _Curriculum:
        if not self.phases:
            raise ValueError("there is no phase: give one at least")
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
    checkpoint_frequency: Count | None = None  # steps, as the next
    eval_frequency: Count | None = None


class _AgentBlock(Config):
    type: str
    hyperparameters: dict[str, Any] = Field(default_factory=dict)
    checkpoint_path: str | None = None


class HockeyProject(Config):
    """The whole file."""

    FIXED_KEYS: ClassVar[tuple[str, ...]] = ()

    curriculum: _Curriculum
    hyperparameters: _Hyperparameters = _Hyperparameters()
    training: _Training = _Training()
    agent: _AgentBlock


def recognizes(values: Mapping[str, Any]) -> bool:
    """Whether the blocks are theirs and not ours."""
    phases = values.get("curriculum")
    listed = phases.get("phases") if isinstance(phases, Mapping) else None
    theirs = isinstance(listed, list) and any(
        isinstance(one, Mapping) and "environment" in one for one in listed
    )
    return "hyperparameters" in values or theirs


def differences(values: Mapping[str, Any]) -> str | None:
    """A sentence on what a file of theirs asks for and is done otherwise here; None: nothing."""
    agent, found = values["agent"], []  # whole: `to_sections` has read the file
    kind, given = agent["type"], agent.get("hyperparameters", {})
    found.append(
        "a phase ends with the iteration that reaches its episodes, and the games that this cuts "
        "are counted nowhere"
    )
    if kind in ("DDDQN", "DDQN_PER") and given.get("use_huber_loss") is not True:
        found.append(
            "its loss is the squared error (no `use_huber_loss: true`), here it is Huber's"
        )
    if given.get("noise", "normal") != "normal":
        found.append(f"its exploration noise is {given['noise']}, here every step's is its own")
    return f"Otherwise than in this hockey project's file: {'; '.join(found)}." if found else None


def to_sections(values: Mapping[str, Any]) -> dict[str, Any]:
    """Our sections for their file.

    Raises:
        ConfigError: a key that nobody reads, or something that is done otherwise here.
    """
    if meaningless := _meaningless(values):
        raise ConfigError(
            f"This hockey project's file has what cannot be trained here: {'; '.join(meaningless)}."
        )
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
        "puck_hold": phases[0].environment.keep_mode,
        "num_action_levels": fineness,
        "opponents": {"weak": 1.0},  # evaluations; theirs play the weak bot, too
    }
    past = _past(phases)
    if past:
        env |= {"opponents": {"agent": 1.0}, "self_play": {"opponents": past}}
    total = sum(phase.episodes for phase in phases)
    most = sum(p.episodes * max(_LONGEST[m] for m in p.environment.weights()) for p in phases)
    # The last phase ends a run; what copies are in when a phase changes or ends counts for nothing.
    training: dict[str, Any] = {"total_timesteps": most + (len(phases) + 1) * _COPIES * 251}
    if theirs.training.checkpoint_save_freq is not None:
        every = theirs.training.checkpoint_save_freq
        training |= {"checkpoint_every": min(1.0, every / total), "policy_every_episodes": every}
    elif theirs.training.checkpoint_frequency is not None:
        training["checkpoint_every"] = min(1.0, theirs.training.checkpoint_frequency / most)
    scale, judged = theirs.training.reward_scale, theirs.training.eval_frequency
    return {
        "env": env,
        "agent": _agent(theirs),
        "training": training,
        **({} if judged is None else {"evaluation": {"every_steps": judged}}),
        "curriculum": {
            "phases": [_phase(phase, i, scale, bool(past)) for i, phase in enumerate(phases)],
        },
    }


def _past(phases: tuple[_Phase, ...]) -> dict[str, float]:
    """Whom self-play names; a run has one line-up, and phases say how often it is met."""
    found = [past for phase in phases if (past := phase.opponent.past())]
    for name in (name for past in found for name in past):
        if name.endswith((".pt", ".pth")):
            raise ConfigError(
                f"`checkpoint: {name}` is a network of another program: name a run of ours, such "
                "as results/runs/models/RUN, or null for snapshots of the learner itself."
            )
    if any(past != found[0] for past in found):
        raise ConfigError(
            "Opponents of type `self_play` differ between phases, and a run meets one line-up: "
            "give the same `checkpoint` and weights in all of them, or train a run for each."
        )
    return found[0] if found else {}


def _phase(phase: _Phase, number: int, scale: float, played: bool) -> dict[str, Any]:
    met = phase.opponent.weights()
    env: dict[str, Any] = {
        "mode": {name.lower(): weight for name, weight in phase.environment.weights().items()},
        "opponents": {"agent": _NEVER, **met} if played else met,
        "reward": {"scale": scale},
    }
    return {
        "name": phase.name or f"phase {number + 1}",
        "episodes": phase.episodes,
        "env": env,
        "anneal": phase.reward_shaping.anneal() if phase.reward_shaping else {},
        "clear_replay": phase.clear_buffer,
    }


def _meaningless(values: Mapping[str, Any]) -> list[str]:
    """What of a file has no counterpart here, each with its key and what to do instead."""
    found = []
    agent, curriculum = values.get("agent"), values.get("curriculum")
    agent = agent if isinstance(agent, Mapping) else {}
    kind = agent.get("type")
    if isinstance(kind, str) and kind not in _BY_TYPE:
        found.append(
            f"`agent.type: {kind}` is an agent that slipstream has not (docs/guides/agents.md); "
            f"known: "
            f"{', '.join(_BY_TYPE)}"
        )
    tried = _lists(values.get("hyperparameters"), "hyperparameters")
    tried += _lists(agent.get("hyperparameters"), "agent.hyperparameters")
    if tried:
        found.append(
            f"{', '.join(tried)} list values to try, which is a search: give one each, or search "
            "with `slipstream tune` (docs/guides/studies.md)"
        )
    if curriculum is None:
        found.append("no `curriculum` says what is trained, these are settings of an agent alone")
    phases = curriculum.get("phases") if isinstance(curriculum, Mapping) else None
    networks: dict[str, str] = {}  # by what is met, its first place
    for i, phase in enumerate(phases if isinstance(phases, list) else ()):
        if not isinstance(phase, Mapping):
            continue
        where = f"`curriculum.phases.{i}"
        for kind in _kinds(phase.get("opponent")):
            if kind in _NETWORKS:
                networks.setdefault(kind, f"{where}.opponent`")
        if phase.get("reward_bonus") is not None:
            found.append(f"{where}.reward_bonus` pays for wins in the replay: leave it out")
    if networks:
        met = ", ".join(f"{kind} ({where})" for kind, where in networks.items())
        found.append(
            f"opponents of type {met} are another program's networks: train against snapshots of "
            "one's own, `type: self_play` (docs/guides/self-play.md)"
        )
    return found


def _lists(settings: Any, where: str) -> list[str]:
    """Keys that list values to try: a width is a list of its own."""
    if not isinstance(settings, Mapping):
        return []
    return [
        f"`{where}.{key}`"
        for key, value in settings.items()
        if isinstance(value, list)
        and (key not in ("hidden_dim", "latent_dim") or any(isinstance(v, list) for v in value))
    ]


def _kinds(opponent: Any) -> list[str]:
    """Types of an opponent and of those in its mixture."""
    if not isinstance(opponent, Mapping):
        return []
    inner = opponent.get("opponents")
    kinds = [kind for one in inner for kind in _kinds(one)] if isinstance(inner, list) else []
    return [*kinds, str(opponent.get("type"))]


_NETWORKS = ("archive", "run_checkpoints")


def _fineness(theirs: HockeyProject) -> int:
    if _BY_TYPE[theirs.agent.type].ours != "dqn":
        return 0
    return int(theirs.agent.hyperparameters.get("action_fineness", 2))


class _Agent(NamedTuple):
    """One of their agents.

    Attributes:
        ours: the name of ours.
        names: what their keys are called here; None: read elsewhere, or without a counterpart.
        left_open: values of theirs, by our names, where a file gives none.
    """

    ours: str
    names: dict[str, str | None]
    left_open: dict[str, Any]


_SHARED: dict[str, str | None] = {
    "discount": "gamma",
    "hidden_dim": "net_arch",
    "learning_rate": None,  # `hyperparameters` has both, which theirs take
    "batch_size": None,
}
_VALUES: dict[str, str | None] = {
    **_SHARED,
    "target_update_freq": "target_update_interval",
    "eps": None,  # see `_exploration`, as for the next two
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
            "alpha": None,  # see `_agent`, as for the next
            "learn_alpha": None,
            "noise": None,  # see `differences`
            "max_episode_steps": None,  # of its noise
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
    "PPO": _Agent("ppo", _SHARED, {}),  # not among theirs
}


def _agent(theirs: HockeyProject) -> dict[str, Any]:
    kind, given = theirs.agent.type, theirs.agent.hyperparameters
    known = _BY_TYPE[kind]
    unknown = sorted(set(given) - set(known.names))
    if unknown:
        raise ConfigError(
            f"`agent.hyperparameters.{unknown[0]}` is not a known key of {kind}; known keys: "
            f"{', '.join(sorted(known.names))}."
        )
    for key, only in (("reward_clip", None), ("max_action", 1.0)):
        if given.get(key, only) != only:
            raise ConfigError(
                f"`agent.hyperparameters.{key}` is {given[key]!r}: actions run from -1 to 1 here, "
                "and rewards are not clipped. Leave it out."
            )
    agent: dict[str, Any] = {
        "name": known.ours,
        "learning_rate": theirs.hyperparameters.learning_rate,
        **known.left_open,
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
    agent |= {ours: given[key] for key, ours in known.names.items() if ours and key in given}
    if known.ours == "dqn":
        agent |= _exploration(theirs)
    if kind == "SAC" and not given.get("learn_alpha", True):
        agent["ent_coef"] = given.get("alpha", 0.2)  # learned, theirs begins at 1 as ours does
    return agent


def _exploration(theirs: HockeyProject) -> dict[str, Any]:
    """Their epsilon falls by a factor in every episode, ours linearly over as many steps."""
    own = theirs.agent.hyperparameters
    first, last = float(own.get("eps", 1.0)), float(own.get("eps_min", 0.01))
    decay = own.get("eps_decay", 0.9995)
    if decay is None:  # epsilon stays
        return {
            "exploration_initial_eps": first,
            "exploration_final_eps": first,
            "exploration_steps": 0,
        }
    if not (0.0 < decay < 1.0 and 0.0 < last <= first):
        raise ConfigError(
            "`agent.hyperparameters`: epsilon must fall: eps >= eps_min > 0 and 0 < eps_decay < 1."
        )
    left = math.ceil(math.log(last / first) / math.log(decay))
    steps = 0
    for phase in theirs.curriculum.phases:
        longest = max(_LONGEST[mode] for mode in phase.environment.weights())
        steps += min(left, phase.episodes) * longest
        left -= min(left, phase.episodes)
    return {
        "exploration_initial_eps": first,
        "exploration_final_eps": last,
        "exploration_steps": steps,
    }
