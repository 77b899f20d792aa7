"""A complete policy: networks, observation scaling and action mapping."""

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

_MAX_ACTORS = 8  # maximum number of cached buffer sizes
_SAMPLING_LOOPS = {
    "logits": "act_categorical",
    "gaussian": "act_gaussian",
    "squashed_gaussian": "act_squashed_gaussian",
}
_DEFAULT_EXPLORATION = {
    "q": 0.05,
    "tanh": 0.1,
}  # final epsilon of DQN, noise of TD3
_MAX_PORTABLE_CALLS = 10_000  # single observations before the compiled loops are loaded
_MIN_ROWS = 8  # for images: fewer rows use other matrix kernels with other rounding
_NO_MASK = np.zeros((0, 0), np.bool_)


class Policy(SummaryRepr):
    """Policies of M members that act on the same kind of observation.

    ::

        policy = slipstream.load_policy(run)
        action = policy.act(observation)          # one observation -> one action
        actions = policy.act(observations)        # a batch [n, ...] -> n actions

    Args:
        specs: One EnvSpec per member; they may differ in fixed scales only.
        seeds: [M]; a member's initial weights depend only on its seed.
        net_arch: Hidden layer widths (for images, the last one is the dense layer's).
        activation: Activation between layers.
        observation_normalization: Keep running statistics of columns without a fixed scale.
        init_std: Initial standard deviation of continuous actions, in policy units.
        parts: Number of gradient buffers.
        head: Type of head, see `ActionMap`. Only `logits` and `gaussian` have a critic in the
            policy.
        dueling: Dueling network for the head `q`; see `dueling_values` (`networks.py`).

    Attributes:
        parameters: All weights.
        scale: Observation normalizer (None for images).
        actions: Action mapping.
        training_context: Training context of a policy loaded from a file; see
            `Environment.training_context`.
        native: The environment's own observation, mask and action formats for `act`.
        packed: Manifest and tensors of a policy loaded from a file.
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
                f"`specs` must have one EnvSpec per member ({len(seeds)}), got {len(specs)}."
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
        self.network.initialize(self.parameters.weights, self.seeds)
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
        """Allocate network inputs [M, rows, input width] with the column of ones set."""
        x: NDArray[np.float32] = aligned_zeros((self.members, rows, self.input_width))
        x[..., int(np.prod(self.observation_shape))] = 1.0
        return x

    def actor(self, rows: int) -> Actor:
        """Return buffers of one thread to act for `rows` environments of every member."""
        return Actor(self, rows)

    @cached_property
    def _portable(self) -> portable.PortablePolicy | None:
        """Implementation for single observations that needs no compilation; bit-identical."""
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
        """Return observations, actions and networks for display."""
        return {
            "members": self.members if self.members > 1 else None,
            "observations": "x".join(map(str, self.observation_shape)),
            "actions": ActionMap.space(self.actions.description()),
            "layers": " and ".join(map(str, self.net_arch)),
            "activation": self.activation,
        }

    def act(self, obs: Any, mask: Any = None, deterministic: bool = True) -> Any:
        """Return actions for one observation or a batch, both in the environment's own format.

        Args:
            obs: An observation of the environment's own space (an array, a number, a dict or a
                tuple), neither flattened nor scaled; or n of them with a leading batch axis. A
                policy of M > 1 members takes [M, ...] or [M, n, ...].
            mask: bool [num_actions] of allowed actions, [n, num_actions] for a batch; by default
                the entry `action_mask` of a Dict observation. A policy trained with masks requires
                one.
            deterministic: Return the most likely action; otherwise sample, see `reseed`. The heads
                `q` and `tanh` have no distribution and always return the greedy action.

        Returns:
            An action of the environment's own space: an int for Discrete, else an array. For a
            batch, an array with a leading batch axis.

        Raises:
            ConfigError: Observations or a mask of another format, a missing mask, or a head that
                cannot be sampled.
        """
        return self._predict(obs, mask, deterministic)

    def _predict(self, obs: Any, mask: Any, deterministic: bool, exploration: float = 0.0) -> Any:
        """Compute actions of `act`; for `exploration` see `act_batch`."""
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
            actions = self._portable.predict_rows(rows, allowed, keys)
        elif len(rows):
            actions = self.act_rows(rows, keys=keys, mask=allowed)
        if exploration > 0.0 and keys is not None:
            per_member = len(rows) // self.members
            for m, key in enumerate(keys.tolist()):
                member_rows = slice(m * per_member, (m + 1) * per_member)
                open_ = None if allowed is None else allowed[member_rows]
                self.actions.explore(
                    actions[member_rows], exploration, np.random.default_rng(key), open_
                )
        return self.native.actions(actions, lead)

    def act_batch(
        self,
        states: Any,
        deterministic: bool = False,
        exploration: float | None = None,
        mask: Any = None,
    ) -> Any:
        """Act on a batch [n, ...], with the name and the exploring default of older systems.

        Args:
            states: Observations, as for `act`.
            deterministic: Return greedy actions. Otherwise policies of PPO and SAC sample from
                their distribution, and those of DQN and TD3 add `exploration` to their greedy
                actions.
            exploration: For DQN the fraction of uniformly random actions, by default 0.05; for TD3
                the standard deviation of normal noise in halves of an action's range, by default
                0.1.
            mask: bool [n, num_actions], as for `act`.

        Raises:
            ConfigError: See `act`; or `exploration` for a head that samples, or out of its range.
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
        """Reset the random stream of `act(..., deterministic=False)` to a seed."""
        self._keys, self._draws = tuple(seed + m for m in range(self.members)), 0

    def act_rows(
        self,
        obs: NDArray[Any],
        *,
        keys: NDArray[np.uint64] | None = None,
        mask: NDArray[np.bool_] | None = None,
    ) -> NDArray[Any]:
        """Return environment actions [M * R, K] for rows [M * R, *shape]; for inner loops.

        Args:
            obs: Rows as a VectorEnv writes them, unscaled.
            keys: One noise stream per member, uint64 [M]; None for greedy actions, which heads
                without a distribution return anyway.
            mask: bool [M * R, num_actions] of allowed actions.
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
    """Return the network of a policy without allocating weights.

    Args:
        shape: Shape of an observation row.
        image: Whether a row is a uint8 image.
        actions, net_arch, activation, dueling: See `Policy`.
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
    """Buffers to act for R environments of every member."""

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
        """Compute the actor's output [M, >= R, padded] for unscaled rows [M * R, *shape]."""
        return self._policy.network.act(
            self._policy.parameters.weights, self._load(obs), self._workspace
        )

    def value(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Compute the critic's output [M, >= R, padded]; values are in the first column."""
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
        """Arguments of compiled loops for greedy actions, with the policy's current state."""
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
        """Write greedy environment actions [M * R, K] for observations [M * R, *shape]."""
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
        """Return the arguments of compiled loops that sample, with the policy's current state.

        Args:
            keys: uint64 [T, M], noise stream of each member at step t.
            first: Index within its member of the first environment.

        Raises:
            ConfigError: The head cannot be sampled.
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
        """Compiled loop that takes a `sampler`; see `rl/nets/action_selection.py`."""
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
        """Sample actions for M * R environments.

        Args:
            obs: [M * R, *shape].
            mask: bool [M * R, num_actions] or None.
            keys: Noise stream of each member.
            first: As for `sampler`.
            action: [M * R, K], the policy's actions, written.
            log_prob: [M * R], written.
            out: [M * R, K], environment actions, written.

        Raises:
            ConfigError: The head cannot be sampled.
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
                f"Sampling is not implemented for a policy with the head {policy.actions.head}. "
                "Pass deterministic=True."
            )


@dataclass(frozen=True)
class NativeSpaces:
    """Conversion between the environment's own spaces and rows [M * R, ...].

    Attributes:
        observation_codec, action_codec: Codecs of the spaces.
        members: M.
        sizes: Number of values of each discrete component, () for a Box.
        masked: Whether the policy requires a mask of allowed actions.
    """

    observation_codec: ObservationCodec
    action_codec: ActionCodec
    members: int
    sizes: tuple[int, ...]
    masked: bool = False

    @classmethod
    def from_spec(cls, spec: EnvSpec, members: int, sizes: tuple[int, ...]) -> NativeSpaces:
        """Return the codecs of an environment's own observations and actions."""
        return cls(
            make_observation_codec(spec),
            make_action_codec(spec),
            members,
            sizes,
            bool(spec.has_action_mask),
        )

    def rows(self, obs: Any) -> tuple[NDArray[Any], tuple[int, ...]]:
        """Encode observations as rows [M * R, *shape]; also return the leading axes, () for one.

        Raises:
            ConfigError: The format is wrong, or a value is not finite.
        """
        members = self.members
        axes = "the members first, then the batch axis" if members > 1 else "the batch axis first"
        try:
            rows, lead = self.observation_codec.encode(obs)
        except SpaceMismatchError as error:
            raise ConfigError(
                f"The policy got {error}. It takes one observation "
                f"({self.observation_codec.requirement}) "
                f"or a batch of them, {axes}, as the environment returns them: neither flattened "
                "nor scaled."
            ) from None
        if len(lead) > (2 if members > 1 else 1) or (members > 1 and lead[:1] != (members,)):
            raise ConfigError(
                f"Observations of shape {rows.shape[len(lead) :]} have the leading axes {lead}, "
                f"but the policy has {members} member(s). Pass one observation or a batch, {axes}."
            )
        rows = np.ascontiguousarray(rows.reshape(-1, *self.observation_codec.shape))
        if not np.isfinite(rows).all():
            raise ConfigError(
                "An observation contains NaN or infinity, so that no meaningful action exists. Fix "
                "the code that produced the observation."
            )
        return rows, lead

    def mask_from_observation(self, obs: Any) -> Any:
        """Return the mask that observations contain; None if the policy requires none."""
        if not self.masked:
            return None
        if isinstance(obs, list):
            parts = [self.mask_from_observation(item) for item in obs]
            return None if any(part is None for part in parts) else np.stack(parts)
        return (
            np.asarray(obs[ACTION_MASK_KEY]) > 0
            if isinstance(obs, Mapping) and ACTION_MASK_KEY in obs
            else None
        )

    def mask_rows(self, mask: Any, lead: tuple[int, ...], rows: int) -> NDArray[np.bool_] | None:
        """Return a mask as rows [M * R, num_actions]; None if all actions are allowed.

        Raises:
            ConfigError: The mask is missing, has a wrong format, or allows no action.
        """
        num_actions = sum(self.sizes)
        if mask is None:
            if self.masked:
                raise ConfigError(
                    "`mask` is required, got None: this policy was trained with action masks. Pass "
                    f"`env.mask` of slipstream.make_vec, bool of shape {(*lead, num_actions)}."
                )
            return None
        if not num_actions:
            raise ConfigError(
                "`mask` has no effect on Box actions, which this policy returns. Leave it out."
            )
        allowed = np.asarray(mask)
        if allowed.shape != (*lead, num_actions) or allowed.dtype.kind not in "biu":
            raise ConfigError(
                f"`mask` must be bool of shape {(*lead, num_actions)}, batch axis first, got "
                f"{allowed.dtype} of shape {allowed.shape}."
            )
        allowed = np.ascontiguousarray(allowed.reshape(rows, num_actions), np.bool_)
        has_action = np.logical_or.reduceat(allowed, np.cumsum([0, *self.sizes[:-1]]), axis=1)
        if not has_action.all():
            row, component = (int(i) for i in np.argwhere(~has_action)[0])
            which = f", component {component}" if len(self.sizes) > 1 else ""
            raise ConfigError(
                f"`mask` allows nothing in row {row}{which}. Allow at least one action."
            )
        return allowed

    def actions(self, rows: NDArray[Any], lead: tuple[int, ...]) -> Any:
        """Decode rows [M * R, K] to actions [*lead, ...] of the environment's own space."""
        return self.action_codec.decode(rows.reshape(*lead, rows.shape[-1]))

    def description(self) -> dict[str, Any]:
        """Return a JSON-serializable form for a policy's manifest."""
        return {
            "observation": self.observation_codec.description,
            "layout": self.observation_codec.layout,
            "action": self.action_codec.description,
            "masked": self.masked,
        }

    def with_description(self, description: Mapping[str, Any]) -> NativeSpaces:
        """Return the same conversion with the spaces of a manifest; the rows are unchanged."""
        return replace(
            self,
            observation_codec=ObservationCodec(description["observation"], description["layout"]),
            action_codec=ActionCodec(description["action"], self.action_codec.start),
            masked=bool(description["masked"]),
        )
