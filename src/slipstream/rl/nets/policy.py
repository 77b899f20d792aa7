"""A complete policy: networks, observation scaling, action mapping; one thing to export."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream import portable
from slipstream.core.errors import ConfigError
from slipstream.core.extras import import_optional
from slipstream.core.text import SummaryRepr
from slipstream.jit import rng
from slipstream.jit.alignment import aligned_zeros
from slipstream.kernels.space_codec import (
    ACTION_MASK_KEY,
    ActionCodec,
    ObservationCodec,
    SpaceMismatchError,
    make_action_codec,
    make_observation_codec,
)
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.experience.running_mean_std import ObservationNormalizer
from slipstream.rl.nets.action_selection import GreedyActor, Sampler, loops
from slipstream.rl.nets.actions import ActionMap, Head
from slipstream.rl.nets.layers import BLOCK
from slipstream.rl.nets.networks import Activation, MlpNetwork, Network, input_width
from slipstream.rl.nets.optimizer import Parameters

_MAX_ACTORS = 8  # numbers of rows that buffers are kept for
_SAMPLING_LOOPS = {
    "logits": "act_categorical",
    "gaussian": "act_gaussian",
    "squashed_gaussian": "act_squashed_gaussian",
}
_DEFAULT_EXPLORATION = {
    "q": 0.05,
    "tanh": 0.1,
}  # the last epsilon of DQN and the noise of TD3 in training
_MAX_PORTABLE_CALLS = 10_000  # single observations from which on it pays to load the compiler
_MIN_ROWS = 8  # of images: fewer take other matrix paths, and bits would depend on how many act
_NO_MASK = np.zeros((0, 0), np.bool_)


class Policy(SummaryRepr):
    """The policies of M members that act on the same kind of observation.

    ::

        policy = slipstream.load_policy(run)
        action = policy.act(observation)          # one observation -> one action
        actions = policy.act(observations)        # a batch [n, ...] -> n actions

    Args:
        specs: one EnvSpec per member; they differ in fixed scales only.
        seeds: [M]; a member's first weights follow from its seed alone.
        net_arch: hidden layers (an image's dense layer is the last of them).
        activation: between layers.
        observation_normalization: keep running statistics of columns without a fixed scale.
        init_std: standard deviation of continuous actions at the start, in policy units.
        parts: gradient buffers.
        head: what the network's outputs mean, see `ActionMap`. Only `logits` and `gaussian` have a
            critic in the policy.
        dueling: of the head `q`, see `dueling_values` (`networks.py`).

    Attributes:
        parameters: all weights; scale: of observations (None for images); actions: the mapping.
        conditions: what it was trained under, where it was read from a file; see
            `Environment.conditions`.
        native: the outside of `act`: observations, masks and actions as the environment knows them.
        packed: manifest and tensors, where it was read from a file.
    """

    def __init__(
        self,
        specs: Sequence[EnvSpec],
        seeds: Sequence[int],
        *,
        net_arch: tuple[int, ...] = (64, 64),
        activation: Activation = "tanh",
        observation_normalization: bool = True,
        init_std: float = 0.6,
        parts: int = 1,
        head: Head | None = None,
        dueling: bool = False,
    ) -> None:
        if len(specs) != len(seeds):
            raise ConfigError(
                f"One EnvSpec per member is needed: {len(seeds)} members, {len(specs)} specs."
            )
        spec = specs[0]
        self.members, self.seeds = len(seeds), tuple(int(seed) for seed in seeds)
        self.net_arch, self.activation, self.dueling = tuple(net_arch), activation, dueling
        self.observation_shape = spec.observation_shape
        self.observation_dtype = spec.observation_dtype
        self.actions = ActionMap(spec.action_space, head)
        self.training_context: Mapping[str, Any] = {}
        self.native = NativeSpaces.from_spec(spec, self.members, self.actions.sizes)
        self.is_image = self.observation_dtype == np.uint8 and len(self.observation_shape) == 3
        self.scale: ObservationNormalizer | None = None
        self.network = make_policy_network(
            *(self.observation_shape, self.is_image, self.actions, self.net_arch),
            *(activation, dueling),
        )
        if not self.is_image:
            self.scale = ObservationNormalizer(specs, observation_normalization)
        shapes = dict(self.network.shapes())
        if self.actions.head == "gaussian":
            shapes["log_std"] = (self.actions.width,)
        self.parameters = Parameters(shapes, self.members, parts)
        self.network.initialise(self.parameters.weights, self.seeds)
        if self.actions.head == "gaussian":
            self.parameters.weights["log_std"][:] = math.log(init_std)
        self._actors: dict[int, Actor] = {}
        self.packed: tuple[Mapping[str, Any], Mapping[str, NDArray[Any]]] | None = None
        self._num_portable_calls = 0
        self._keys, self._draws = self.seeds, 0

    @property
    def input_width(self) -> int:
        """Columns of the network's input for one observation row."""
        return input_width(int(np.prod(self.observation_shape)))

    def inputs(self, rows: int) -> NDArray[np.float32]:
        """Memory for network inputs [M, rows, input width], its column of ones in place."""
        x: NDArray[np.float32] = aligned_zeros((self.members, rows, self.input_width))
        x[..., int(np.prod(self.observation_shape))] = 1.0
        return x

    def actor(self, rows: int) -> Actor:
        """Buffers to act for `rows` environments of every member; one for each thread that acts."""
        return Actor(self, rows)

    @cached_property
    def _portable(self) -> portable.PortablePolicy | None:
        """Acts for one observation to the same bits, and compiles nothing."""
        return (
            None if self.packed is None or self.is_image else portable.PortablePolicy(*self.packed)
        )

    def _actor(self, rows: int) -> Actor:
        if rows not in self._actors:
            if len(self._actors) >= _MAX_ACTORS:
                del self._actors[next(iter(self._actors))]
            self._actors[rows] = Actor(self, rows)
        return self._actors[rows]

    def summary(self) -> dict[str, object]:
        """What is observed, what comes of it, and the networks between."""
        return {
            "members": self.members if self.members > 1 else None,
            "observations": "x".join(map(str, self.observation_shape)),
            "actions": ActionMap.space(self.actions.description()),
            "layers": " and ".join(map(str, self.net_arch)),
            "activation": self.activation,
        }

    def act(self, obs: Any, mask: Any = None, deterministic: bool = True) -> Any:
        """Actions for one observation or for a batch, both as the environment itself knows them.

        Args:
            obs: an observation of the environment's own space (an array, a number, a dict or a
                tuple), not flattened and not scaled; or n of them, the batch axis first in every
                array. A policy of M > 1 members takes [M, ...] or [M, n, ...].
            mask: bool [choices] of the choices allowed now, [n, choices] for a batch; the part
                `action_mask` of a Dict unless given. Without it a
                policy that was trained with one refuses to act.
            deterministic: the most likely action; otherwise one is drawn, see `reseed`. The heads
                `q` and `tanh` have no distribution, and always take the best one.

        Returns:
            An action of the environment's own space: an int for Discrete, else an array; for a
            batch an array with the batch axis first.

        Raises:
            ConfigError: observations or a mask of another form, no mask where one is needed, or a
                head that is not drawn from.
        """
        return self._predict(obs, mask, deterministic)

    def _predict(self, obs: Any, mask: Any, deterministic: bool, exploration: float = 0.0) -> Any:
        """Actions of `act`; `exploration`: of heads without a distribution, see `act_batch`."""
        rows, lead = self.native.rows(obs)
        mask = self.native.mask_from_observation(obs) if mask is None else mask
        allowed = self.native.mask_rows(mask, lead, len(rows))
        keys = None
        if not deterministic:
            keys = rng.member_keys(self._keys, rng.SAMPLE, self._draws)
            self._draws += 1
        actions = np.zeros((0, self.actions.width), self.actions.dtype)
        if (
            len(rows) == 1
            and self._portable
            and not self._actors
            and self._num_portable_calls < _MAX_PORTABLE_CALLS
        ):
            self._num_portable_calls += 1
            actions = self._portable.decide(rows, allowed, keys)
        elif len(rows):
            actions = self.act_rows(rows, keys=keys, mask=allowed)
        if exploration > 0.0 and keys is not None:
            each = len(rows) // self.members
            for m, key in enumerate(keys.tolist()):
                own = slice(m * each, (m + 1) * each)
                open_ = None if allowed is None else allowed[own]
                self.actions.explore(actions[own], exploration, np.random.default_rng(key), open_)
        return self.native.actions(actions, lead)

    def act_batch(
        self,
        states: Any,
        deterministic: bool = False,
        exploration: float | None = None,
        mask: Any = None,
    ) -> Any:
        """Act on a batch [n, ...] by the name and the default of older systems: explore.

        Args:
            states: observations, as for `act`.
            deterministic: return the best actions, as `act` does by default. Otherwise policies
                of PPO and SAC draw from their distribution, and those of DQN and TD3 add
                `exploration` to their best actions.
            exploration: of DQN the share of actions that are uniformly random, by default 0.05; of
                TD3 the standard deviation of normal noise in halves of an action's range, by
                default 0.1.
            mask: bool [n, choices], as for `act`.

        Raises:
            ConfigError: see `act`; or `exploration` for a head that draws or out of its range.
        """
        head = self.actions.head
        if exploration is None:
            exploration = _DEFAULT_EXPLORATION.get(head, 0.0)
        elif head not in _DEFAULT_EXPLORATION or not 0.0 <= exploration <= 1.0:
            raise ConfigError(
                f"exploration must be from 0 to 1 for a policy of DQN or TD3, got {exploration!r} "
                f"for one with the head {head}. Leave it out."
            )
        return self._predict(states, mask, deterministic, exploration)

    def reseed(self, seed: int) -> None:
        """Begins the stream that `act(..., deterministic=False)` draws from anew, from a seed."""
        self._keys, self._draws = tuple(seed + m for m in range(self.members)), 0

    def act_rows(
        self,
        obs: NDArray[Any],
        *,
        keys: NDArray[np.uint64] | None = None,
        mask: NDArray[np.bool_] | None = None,
    ) -> NDArray[Any]:
        """What the environments receive, [M * R, K], for rows [M * R, *shape]; for inner loops.

        Args:
            obs: as a VectorEnv writes them into its rows, not scaled.
            keys: one noise stream per member, uint64 [M]; None for the most likely action, which
                heads without a distribution take anyway.
            mask: bool [M * R, choices] of allowed choices.
        """
        rows = len(obs) // self.members
        actor = self._actor(rows)
        out = np.zeros((len(obs), self.actions.width), self.actions.dtype)
        if keys is None or not self.actions.is_stochastic:
            actor.decide(obs, mask, out)
        else:
            drawn, log_prob = np.empty_like(out), np.empty(len(out), np.float32)
            actor.sample(obs, mask, keys, 0, drawn, log_prob, out)
        return out


def make_policy_network(
    shape: tuple[int, ...],
    image: bool,
    actions: ActionMap,
    net_arch: tuple[int, ...],
    activation: Activation,
    dueling: bool,
) -> Network:
    """The network of a policy; no weights are allocated.

    Args:
        shape: of an observation row, `image` where that is a uint8 image.
        actions, net_arch, activation, dueling: see `Policy`.
    """
    if image:
        import_optional("torch", "A network for images", "torch")
        from slipstream.rl.nets.torch_networks import ConvolutionalNetwork

        c, h, w = shape
        return ConvolutionalNetwork((c, h, w), net_arch[-1], actions.head_width)
    return MlpNetwork(
        math.prod(shape),
        net_arch,
        actions.head_width,
        activation,
        critic=actions.head in ("logits", "gaussian"),
        dueling=dueling,
    )


class Actor:
    """Acts for R environments of every member, in buffers of its own."""

    def __init__(self, policy: Policy, rows: int) -> None:
        self._policy, self._rows = policy, rows
        full = max(rows, _MIN_ROWS) if policy.is_image else rows
        if policy.is_image:
            shape = (policy.members, full, *policy.observation_shape)
            self._x: NDArray[Any] = np.zeros(shape, np.uint8)
        else:
            self._x = policy.inputs(full)
            self._numbers = int(np.prod(policy.observation_shape))
            self._row = np.zeros((BLOCK, policy.input_width), np.float32)
            self._row[:, self._numbers] = 1.0
            self._mapping = policy.actions.arrays
        self._workspace = policy.network.workspace(policy.members, full)
        self._noise = np.zeros(BLOCK * policy.actions.head_width, np.float32)
        self._sizes = np.array(policy.actions.sizes, np.int64)
        self._loops = loops()

    def head(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """The actor's output [M, >= R, padded] for observations [M * R, *shape], not scaled."""
        return self._policy.network.act(
            self._policy.parameters.weights, self._load(obs), self._workspace
        )

    def value(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """The critic's output [M, >= R, padded], values in the first column."""
        return self._policy.network.value(
            self._policy.parameters.weights, self._load(obs), self._workspace
        )

    def _load(self, obs: NDArray[Any]) -> NDArray[Any]:
        policy = self._policy
        if policy.scale is None:
            by_member = obs.reshape(policy.members, self._rows, *policy.observation_shape)
            self._x[:, : self._rows] = by_member
        else:
            policy.scale.apply(obs[None], self._x)
        return self._x

    @property
    def greedy_actor(self) -> GreedyActor:
        """What compiled loops read that decide on vectors, of the policy as it is now."""
        policy = self._policy
        scale, network = policy.scale, policy.network
        assert scale is not None and isinstance(network, MlpNetwork)
        sizes, start, half, middle, low, high = self._mapping
        return GreedyActor(
            weights=policy.parameters.arrays.params,
            table=network.tables[0],
            relu=network.activation == "relu",
            squashed=policy.actions.squashed,
            scale=scale.arrays,
            sizes=sizes,
            start=start,
            half=half,
            middle=middle,
            low=low,
            high=high,
            x=self._row,
            workspace=self._workspace.block,
        )

    def decide(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None, out: NDArray[Any]) -> None:
        """Writes what the environments receive [M * R, K] for observations [M * R, *shape]."""
        if self._policy.is_image:
            self._decide_images(obs, mask, out)
            return
        name = (
            "act_greedy_box_members"
            if self._policy.actions.continuous
            else "act_greedy_discrete_members"
        )
        flat = np.ascontiguousarray(obs, np.float32).reshape(len(out), self._numbers)
        allowed = _NO_MASK
        if mask is not None:
            allowed = np.ascontiguousarray(mask, np.bool_).reshape(len(out), -1)
        self._loops[name](self.greedy_actor, self._rows, flat, allowed, out)

    def _decide_images(
        self, obs: NDArray[Any], mask: NDArray[np.bool_] | None, out: NDArray[Any]
    ) -> None:
        actions = self._policy.actions
        action: NDArray[Any] = self.head(obs)[:, : self._rows, : actions.head_width]
        action = action.reshape(len(out), -1)
        if actions.squashed:
            action = np.tanh(action[:, : actions.width])
        if not actions.continuous:
            logits = action if mask is None else np.where(mask, action, -np.inf)
            parts = np.split(logits, np.cumsum(actions.sizes)[:-1], axis=1)
            action = np.stack([part.argmax(1) for part in parts], axis=1)
        actions.to_environment(action, out)

    def sampler(self, keys: NDArray[np.uint64], first: int = 0) -> Sampler:
        """Of the policy as it is now, for loops that draw.

        Args:
            keys: uint64 [T, M], the noise stream of each member at step t.
            first: number within its member of the first environment acted for.

        Raises:
            ConfigError: the head has no distribution that slipstream draws from.
        """
        policy = self._policy
        self._check_stochastic()
        log_std = np.zeros((policy.members, 0), np.float32)
        if policy.actions.head == "gaussian":
            log_std = np.ascontiguousarray(policy.parameters.weights["log_std"])
        noise = self._noise
        return Sampler(self.greedy_actor, log_std, keys, self._rows, first, noise)

    @property
    def draw(self) -> Any:
        """The compiled loop that takes a `sampler`; see `rl/nets/action_selection.py`."""
        return self._loops[_SAMPLING_LOOPS[self._policy.actions.head]]

    def sample(
        self,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None,
        keys: NDArray[np.uint64],
        first: int,
        action: NDArray[Any],
        log_prob: NDArray[np.float32],
        out: NDArray[Any],
    ) -> None:
        """Draws actions for M * R environments.

        Args:
            obs: [M * R, *shape]; mask: bool [M * R, choices] or None.
            keys: noise stream of each member; first: as for `sampler`.
            action: [M * R, K], the policy's own; log_prob: [M * R], of them; out: [M * R, K], what
                the environments receive. All three are written.

        Raises:
            ConfigError: the head has no distribution that slipstream draws from.
        """
        allowed = _NO_MASK if mask is None else mask
        if not self._policy.is_image:
            flat = np.ascontiguousarray(obs, np.float32).reshape(len(out), self._numbers)
            sampler = self.sampler(keys[None], first)
            self.draw(sampler, 0, flat, allowed, action, log_prob, out)
            return
        self._check_stochastic()
        actions = self._policy.actions
        fill = rng.fill_normal if actions.continuous else rng.fill_gumbel
        noise = np.zeros((self._policy.members, self._rows * actions.head_width), np.float32)
        fill(keys, first * actions.head_width, noise)
        head = self.head(obs)
        if actions.continuous:
            log_std = np.ascontiguousarray(self._policy.parameters.weights["log_std"])
            self._loops["sample_gaussian"](head, noise, log_std, action, log_prob)
        else:
            self._loops["sample_categorical"](head, noise, allowed, self._sizes, action, log_prob)
        actions.to_environment(action, out)

    def _check_stochastic(self) -> None:
        policy = self._policy
        if policy.actions.head not in _SAMPLING_LOOPS or (
            policy.is_image and policy.actions.squashed
        ):
            raise ConfigError(
                f"A policy with the head {policy.actions.head} is not drawn from in this "
                "version: act with deterministic=True."
            )


@dataclass(frozen=True)
class NativeSpaces:
    """Turns what the environment shows into rows [M * R, ...], and rows of actions back.

    Attributes:
        observed, acted: forms of the spaces.
        members: M.
        sizes: choices of each component of an action, () for a Box.
        masked: the environment says which choices are allowed, and the policy must be told.
    """

    observation_codec: ObservationCodec
    action_codec: ActionCodec
    members: int
    sizes: tuple[int, ...]
    masked: bool = False

    @classmethod
    def from_spec(cls, spec: EnvSpec, members: int, sizes: tuple[int, ...]) -> NativeSpaces:
        """Forms of an environment's own observations and actions."""
        return cls(
            make_observation_codec(spec),
            make_action_codec(spec),
            members,
            sizes,
            bool(spec.has_action_mask),
        )

    def rows(self, obs: Any) -> tuple[NDArray[Any], tuple[int, ...]]:
        """Rows [M * R, *shape] and the axes before an observation's own, () for a single one.

        Raises:
            ConfigError: another form, or NaN.
        """
        members = self.members
        axes = "the members first, then the batch axis" if members > 1 else "the batch axis first"
        try:
            rows, lead = self.observation_codec.encode(obs)
        except SpaceMismatchError as error:
            raise ConfigError(
                f"The policy got {error}. It takes one observation ({self.observation_codec.requirement}) "
                f"or a batch of them, {axes}, as the environment returns them: neither flattened "
                "nor scaled."
            ) from None
        if len(lead) > (2 if members > 1 else 1) or (members > 1 and lead[:1] != (members,)):
            raise ConfigError(
                f"The policy was given observations with the axes {lead} before their own "
                f"{rows.shape[len(lead) :]}, and it has {members} member(s): give one observation "
                f"or a batch, {axes}."
            )
        rows = np.ascontiguousarray(rows.reshape(-1, *self.observation_codec.shape))
        if not np.isfinite(rows).all():
            raise ConfigError(
                "The policy was given an observation with NaN or infinity in it; an action for it "
                "would mean nothing. Mend what made the observation."
            )
        return rows, lead

    def mask_from_observation(self, obs: Any) -> Any:
        """Return the mask that is a part of observations; None if the policy needs none."""
        if not self.masked:
            return None
        if isinstance(obs, list):
            parts = [self.mask_from_observation(one) for one in obs]
            return None if any(part is None for part in parts) else np.stack(parts)
        return (
            np.asarray(obs[ACTION_MASK_KEY]) > 0
            if isinstance(obs, Mapping) and ACTION_MASK_KEY in obs
            else None
        )

    def mask_rows(self, mask: Any, lead: tuple[int, ...], rows: int) -> NDArray[np.bool_] | None:
        """A mask as rows [M * R, choices]; None where all choices are allowed.

        Raises:
            ConfigError: it is missing, of another form, or allows nothing.
        """
        choices = sum(self.sizes)
        if mask is None:
            if self.masked:
                raise ConfigError(
                    "This policy was trained with a mask of allowed choices and does not act "
                    f"without one: give mask=, bool of shape {(*lead, choices)} (`env.mask` of "
                    "slipstream.make_vec)."
                )
            return None
        if not choices:
            raise ConfigError(
                "This policy acts in a Box, of which nothing can be masked: leave `mask` out."
            )
        allowed = np.asarray(mask)
        if allowed.shape != (*lead, choices) or allowed.dtype.kind not in "biu":
            raise ConfigError(
                f"`mask` must be bool of shape {(*lead, choices)}, the batch axis first; it is "
                f"{allowed.dtype} of shape {allowed.shape}."
            )
        allowed = np.ascontiguousarray(allowed.reshape(rows, choices), np.bool_)
        some = np.logical_or.reduceat(allowed, np.cumsum([0, *self.sizes[:-1]]), axis=1)
        if not some.all():
            row, part = (int(i) for i in np.argwhere(~some)[0])
            which = f", component {part}" if len(self.sizes) > 1 else ""
            raise ConfigError(
                f"`mask` allows nothing in row {row}{which}; at least one choice must be allowed."
            )
        return allowed

    def actions(self, rows: NDArray[Any], lead: tuple[int, ...]) -> Any:
        """Actions [*lead, ...] of the environment's own space for rows [M * R, K]."""
        return self.action_codec.decode(rows.reshape(*lead, rows.shape[-1]))

    def description(self) -> dict[str, Any]:
        """JSON-able form, for a policy's manifest."""
        return {
            "observation": self.observation_codec.description,
            "layout": self.observation_codec.layout,
            "action": self.action_codec.description,
            "masked": self.masked,
        }

    def with_description(self, description: Mapping[str, Any]) -> NativeSpaces:
        """A copy whose outside is as a manifest describes it; its rows stay."""
        return replace(
            self,
            observation_codec=ObservationCodec(description["observation"], description["layout"]),
            action_codec=ActionCodec(description["action"], self.action_codec.start),
            masked=bool(description["masked"]),
        )
