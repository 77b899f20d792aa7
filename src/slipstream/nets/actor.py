"""Buffers and loops with which a policy acts for a fixed number of environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.machine import draws
from slipstream.nets.compiled import loops
from slipstream.nets.drawing import Sampler
from slipstream.nets.layers import BLOCK
from slipstream.nets.modes import Decider
from slipstream.nets.networks import MlpNetwork
from slipstream.nets.observations import LIMIT

if TYPE_CHECKING:
    from slipstream.nets.policy import Policy

_DRAWN = {"logits": "draw_choices", "gaussian": "draw_boxes", "squashed_gaussian": "draw_squashed"}
_MIN_ROWS = 8  # of images: fewer take other matrix paths, and bits would depend on how many act


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
        self._space = policy.network.workspace(policy.members, full)
        self._noise = np.zeros(BLOCK * policy.actions.head_width, np.float32)
        self._sizes = np.array(policy.actions.sizes, np.int64)
        self._loops = loops()

    def head(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """The actor's output [M, >= R, padded] for observations [M * R, *shape], not scaled."""
        return self._policy.network.act(
            self._policy.parameters.weights, self._load(obs), self._space
        )

    def value(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """The critic's output [M, >= R, padded], values in the first column."""
        return self._policy.network.value(
            self._policy.parameters.weights, self._load(obs), self._space
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
    def decider(self) -> Decider:
        """Of the policy as it is now, for loops that decide on vectors."""
        policy = self._policy
        scale, network = policy.scale, policy.network
        assert scale is not None and isinstance(network, MlpNetwork)
        sizes, start, half, middle, low, high = self._mapping
        return Decider(
            weights=policy.parameters.arrays.weights,
            table=network.tables[0],
            relu=network.activation == "relu",
            squashed=policy.actions.squashed,
            mean=scale.mean,
            inverse_std=scale.inverse_std,
            limit=LIMIT,
            sizes=sizes,
            start=start,
            half=half,
            middle=middle,
            low=low,
            high=high,
            x=self._row,
            space=self._space.block,
        )

    def decide(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None, out: NDArray[Any]) -> None:
        """Writes what the environments receive [M * R, K] for observations [M * R, *shape]."""
        if self._policy.is_image:
            self._decide_images(obs, mask, out)
            return
        name = "decide_boxes" if self._policy.actions.continuous else "decide_all_choices"
        flat = np.ascontiguousarray(obs, np.float32).reshape(len(out), self._numbers)
        allowed = _NO_MASK
        if mask is not None:
            allowed = np.ascontiguousarray(mask, np.bool_).reshape(len(out), -1)
        self._loops[name](self.decider, self._rows, flat, allowed, out)

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
        self._check_drawn()
        log_std = np.zeros((policy.members, 0), np.float32)
        if policy.actions.head == "gaussian":
            log_std = np.ascontiguousarray(policy.parameters.weights["log_std"])
        noise = self._noise
        return Sampler(self.decider, log_std, keys, self._rows, first, noise)

    @property
    def draw(self) -> Any:
        """The compiled loop that takes a `sampler`; see `nets/drawing.py`."""
        return self._loops[_DRAWN[self._policy.actions.head]]

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
        self._check_drawn()
        actions = self._policy.actions
        fill = draws.fill_normal if actions.continuous else draws.fill_gumbel
        noise = np.zeros((self._policy.members, self._rows * actions.head_width), np.float32)
        fill(keys, first * actions.head_width, noise)
        head = self.head(obs)
        if actions.continuous:
            log_std = np.ascontiguousarray(self._policy.parameters.weights["log_std"])
            self._loops["sample_gaussian"](head, noise, log_std, action, log_prob)
        else:
            self._loops["sample_choices"](head, noise, allowed, self._sizes, action, log_prob)
        actions.to_environment(action, out)

    def _check_drawn(self) -> None:
        policy = self._policy
        if policy.actions.head not in _DRAWN or (policy.is_image and policy.actions.squashed):
            raise ConfigError(
                f"A policy with the head {policy.actions.head} is not drawn from in this "
                "version: act with deterministic=True."
            )


_NO_MASK = np.zeros((0, 0), np.bool_)
