"""The replay of M members: writing, sampling and checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.jit.alignment import aligned_zeros
from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import FinalObs, VectorEnv
from slipstream.rl.experience.replay.replay_config import (
    ReplayConfig,
    ring_slots,
    stores_state_fields,
)
from slipstream.rl.experience.replay.ring import (
    CONTINUING,
    ENDING,
    NO_REFLECTION,
    NONE,
    TRUNCATED,
    Batch,
    Ring,
    advance_head,
    loops,
    make_reflection,
)
from slipstream.rl.experience.replay.state_storage import (
    DenseStorage,
    EpisodeEnds,
    ImageStorage,
    ReplayLoops,
    StateFieldStorage,
    Storage,
)
from slipstream.rl.experience.replay.sum_tree import tree_levels
from slipstream.rl.experience.rollout import Rollout

CHUNKS = 64  # chunks per ring
PRIORITIES = "priorities"
_PRIORITY_BLOCK = 64  # transitions that descend the sum tree together

ChunkBuilder = Callable[[], NDArray[Any]]


class Sample(NamedTuple):
    """Batches of g members and their origin.

    Attributes:
        index: int64 [g, B], sampled transitions.
        weight: float32 [g, B], importance weights.
        batch: A Batch whose arrays have a leading axis [g].
    """

    index: NDArray[np.int64]  # type: ignore[assignment]  # hides tuple.index
    weight: NDArray[np.float32]
    batch: Batch


class Replay:
    """Replay of M members with N environments each. Every environment has a ring of its own.

    Args:
        config: Configuration of the replay.
        spec: Spec of the environments.
        members: M.
        num_envs: N.
        mask_size: Width of the environment's action mask; 0 if it has none.
        envs: The environments that write, in slices. Observations that their kernels can render
            again are not stored.

    Attributes:
        ring: Arrays for compiled loops.
        storage: Storage of the observations.
        signs: Reflection of batches; empty if batches are not reflected.
        slots: S of each ring.
    """

    def __init__(
        self,
        config: ReplayConfig,
        spec: EnvSpec,
        members: int,
        num_envs: int,
        mask_size: int = 0,
        envs: Sequence[VectorEnv] = (),
    ) -> None:
        config.check(num_envs)
        self.config, self.spec, self.members, self.num_envs = config, spec, members, num_envs
        total_envs, self.slots = members * num_envs, ring_slots(config, spec, num_envs)
        self.storage = make_storage(config, spec, total_envs, self.slots, envs, mask_size > 0)
        self.signs = make_reflection(spec) if config.reflect else NO_REFLECTION
        levels, nodes = tree_levels(num_envs * self.slots)
        if config.alpha == 0.0:
            nodes = 0
        tree = aligned_zeros((members, nodes))  # the children of a sum are one cache line
        block = (total_envs, self.slots)
        width = self.storage.width + spec.action_dim + 2
        masks = (*block, mask_size) if mask_size and self.storage.stores_masks else (0, 0, 0)
        self.ring = Ring(
            rows=aligned_zeros((*block, width)),
            mask=aligned_zeros(masks, np.bool_),
            head=np.zeros(total_envs, np.int64),
            written=np.zeros(total_envs, np.int64),
            num_used=np.ones(members, np.int64),
            num_valid=np.zeros(members, np.int64),
            steps=np.zeros(members, np.int64),
            tree=tree,
            minimum=np.full((members, max(0, nodes - int(levels[1]))), np.inf, np.float32),
            levels=levels,
            target=np.zeros(_PRIORITY_BLOCK),
            max_priority=np.ones(members),
            width=self.storage.width,
            num_envs=num_envs,
            alpha=config.alpha,
        )
        self._loops = loops()
        self._mask_size = mask_size
        self._samples: dict[tuple[int, int], Sample] = {}
        self._nothing = np.zeros((total_envs, 0), np.bool_)
        self._chunks = [self._make_chunks(m) for m in range(members)]

    def _make_chunks(self, m: int) -> Chunks:
        ring, env_range = self.ring, self._env_slice(m)
        arrays = [ring.rows[env_range].view(np.uint8)]
        if ring.mask.size:
            arrays.append(ring.mask[env_range].view(np.uint8))
        if self.storage.raw is not None:
            arrays.append(self.storage.raw[env_range])
        leaves = self.num_envs * self.slots if ring.tree.shape[1] else 0
        return Chunks(arrays, ring.tree[m, :leaves])

    @property
    def loops(self) -> ReplayLoops | None:
        """Compiled loops that write and sample; None for images."""
        return self.storage.loops

    @property
    def num_valid(self) -> NDArray[np.int64]:
        """Number of transitions of each member that can be sampled, int64 [M]."""
        num_valid: NDArray[np.int64] = self.ring.num_valid
        return num_valid

    @property
    def steps(self) -> NDArray[np.int64]:
        """Environment steps of each member so far, int64 [M]."""
        steps: NDArray[np.int64] = self.ring.steps
        return steps

    @property
    def nbytes(self) -> int:
        """Bytes of all members."""
        arrays = [value for value in self.ring if isinstance(value, np.ndarray)]
        beside = 0 if self.storage.raw is None else self.storage.raw.nbytes
        return sum(array.nbytes for array in arrays) + beside

    # Writing.

    def begin(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        """Store the first observations [E, *shape] and masks, bool [E, mask_size]."""
        self.storage.begin(self.ring, obs, self._allowed(mask))

    def write(
        self, rollout: Rollout, t: int, finals: FinalObs, final_of: NDArray[np.int64]
    ) -> None:
        """Store step t of every environment.

        Args:
            rollout: Rollout that contains the step.
            t: Row of the step.
            finals: Observations of truncated environments before the reset.
            final_of: int64 [E], index of an environment's final observation, -1 for none.
        """
        mask = self._allowed(None if rollout.mask is None else rollout.mask[t + 1])
        self.storage.write(self.ring, rollout, t, mask, EpisodeEnds(finals, final_of))

    def _allowed(self, mask: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
        """Return the part of a mask that the ring stores; [E, 0] if it stores none."""
        return self._nothing if mask is None or not self.ring.mask.size else mask

    # Sampling.

    def make_batch(self, rows: int, members: int | None = None) -> Batch:
        """Allocate a batch of B transitions, with a leading axis for several members."""
        lead = (rows,) if members is None else (members, rows)
        spec = self.spec
        shape = spec.observation_shape
        if spec.observation_dtype != np.uint8:
            shape = (int(np.prod(shape, dtype=np.int64)),)
        masks = (*lead, self._mask_size) if self._mask_size else (*lead[:-1], 0, 0)
        return Batch(
            obs=np.zeros((*lead, *shape), spec.observation_dtype),
            mask=np.ones(masks, np.bool_),
            action=np.zeros((*lead, spec.action_dim), np.float32),
            reward=np.zeros(lead, np.float32),
            discount=np.zeros(lead, np.float32),
            obs_next=np.zeros((*lead, *shape), spec.observation_dtype),
            mask_next=np.ones(masks, np.bool_),
        )

    def sample_into(
        self,
        m: int,
        key: np.uint64,
        n_step: int,
        gamma: float,
        beta: float,
        index: NDArray[np.int64],
        weight: NDArray[np.float32],
        batch: Batch,
    ) -> None:
        """Sample a batch of member m; see `draw` and `gather`.

        Args:
            m: Member; its `num_valid` must be above 0.
            key: Key of the random stream, different for every call.
            n_step, gamma: Number of summed rewards and discount factor.
            beta: Importance-sampling exponent.
            index, weight: int64 and float32 [B], written.
            batch: From `make_batch`, written.
        """
        self._loops["draw"](self.ring, m, key, beta, index, weight)
        self.storage.gather(self.ring, m, index, n_step, gamma, batch)
        if len(self.signs.obs):
            self._loops["reflect"](self.signs, key, batch)

    def sample(
        self,
        members: NDArray[np.int64],
        keys: NDArray[np.uint64],
        rows: int,
        n_step: int,
        gamma: NDArray[np.float64],
        beta: float | NDArray[np.float64] = 1.0,
    ) -> Sample:
        """Sample batches for several members. The next call of equal size overwrites them.

        Args:
            members: int64 [g].
            keys: uint64 [g].
            rows: B.
            n_step: As for `sample_into`.
            gamma: float64 [g].
            beta: float64 [g], or one number.
        """
        size = (len(members), rows)
        if size not in self._samples:
            weight, index = np.zeros(size, np.float32), np.zeros(size, np.int64)
            self._samples[size] = Sample(index, weight, self.make_batch(rows, len(members)))
        sample, betas = self._samples[size], np.broadcast_to(beta, len(members))
        for i, m in enumerate(members.tolist()):
            member_batch = Batch(*(column[i] for column in sample.batch))
            self.sample_into(
                *(m, keys[i], n_step, float(gamma[i]), float(betas[i])),
                *(sample.index[i], sample.weight[i], member_batch),
            )
        return sample

    def update_priorities(
        self, m: int, index: NDArray[np.int64], error: NDArray[np.float32]
    ) -> None:
        """Set the priorities of member m's transitions from their TD errors, both [B]."""
        self._loops["update_priorities"](self.ring, m, index, error)

    # Checkpoints.

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the small part of the state: `written` [E], `steps` and `max_priority` [M]."""
        ring = self.ring
        return {name: getattr(ring, name).copy() for name in ("written", "steps", "max_priority")}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore from `state_dict()`. Transitions follow with `load_chunks`."""
        ring = self.ring
        for name in ("written", "steps", "max_priority"):
            getattr(ring, name)[:] = state[name]
        ring.head[:] = ring.written % self.slots
        used = np.minimum(ring.written + 1, self.slots).reshape(self.members, -1)
        ring.num_used[:] = used.max(1)
        ring.num_valid[:] = 0
        ring.rows[..., ENDING] = NONE
        ring.tree[:] = 0.0

    def chunk_builders(self, member: int) -> Mapping[str, ChunkBuilder]:
        """Return builders of a member's checkpoint chunks by name; see `Chunks`."""
        return self._chunks[member].save(self.ring.written[self._env_slice(member)])

    def load_chunks(self, member: int, chunks: Iterable[tuple[str, NDArray[Any]]]) -> None:
        """Restore chunks from `chunk_builders(member)`. Slots of missing chunks are empty."""
        ring, envs = self.ring, self._env_slice(member)
        self._chunks[member].load(ring.written[envs], chunks)
        real = ring.rows[envs, :, ENDING] != NONE
        ring.num_valid[member] = real.sum()
        if ring.tree.shape[1]:
            leaves = ring.tree[member, : real.size]
            leaves[~real.ravel()] = 0.0
            leaves[real.ravel() & (leaves == 0.0)] = ring.max_priority[member]
            self._loops["rebuild"](ring.tree[member], ring.minimum[member], ring.levels)

    def resume(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        """Truncate episodes of environments whose current observation is not at the head.

        Args:
            obs: [E, *shape].
            mask: bool [E, mask_size] or None.
        """
        envs = np.flatnonzero(self.storage.find_mismatches(self.ring, obs)).tolist()
        for e in envs:
            self._truncate_episode(e)
        if envs:
            self.begin(obs, mask)

    def clear(self, m: int) -> None:
        """Drop all transitions of member m; call `begin` afterwards. Step counts continue."""
        ring, env_range = self.ring, self._env_slice(m)
        ring.rows[env_range, :, ENDING] = NONE
        ring.head[env_range] = ring.written[env_range] = 0
        ring.num_used[m], ring.num_valid[m], ring.max_priority[m] = 1, 0, 1.0
        ring.tree[m] = 0.0
        ring.minimum[m] = np.inf
        self._chunks[m] = self._make_chunks(m)

    def _truncate_episode(self, e: int) -> None:
        """Turn the head of environment e into a final observation if a step led to it."""
        ring, m = self.ring, e // self.num_envs
        before = ring.rows[e, (ring.head[e] - 1) % self.slots]
        if before[ENDING] == CONTINUING:
            before[ENDING] = TRUNCATED
            self._chunks[m].invalidate(int(ring.written[e]) - 1)
            advance_head(ring, e, m)

    def _env_slice(self, member: int) -> slice:
        return slice(member * self.num_envs, (member + 1) * self.num_envs)


def make_storage(
    config: ReplayConfig,
    spec: EnvSpec,
    total_envs: int,
    slots: int,
    envs: Sequence[VectorEnv],
    masked: bool,
) -> Storage:
    """Select the storage of observations; see `ReplayConfig.storage`.

    Raises:
        ConfigError: State fields are requested, and no kernel can render observations from them.
    """
    supported = len(envs) > 0 and StateFieldStorage.is_supported(envs)
    fields = StateFieldStorage.observation_bytes(envs) if supported else None
    if config.storage == "fields" and fields is None:
        raise ConfigError(
            "A replay can store state fields only for a one-player kernel whose `observe` reads "
            "its record field by field, and this environment has none. Set the storage to auto or "
            "dense."
        )
    if stores_state_fields(config, spec, fields, masked):
        return StateFieldStorage(envs, slots)
    if spec.observation_dtype == np.uint8:
        return ImageStorage(spec, total_envs, slots)
    return DenseStorage(spec)


class Chunks:
    """One member's replay in chunks for checkpoints; a full chunk is written once.

    Slots of an environment are numbered from the beginning of training. A chunk contains the same
    `length` numbers of every environment of a member. Its name contains its position and a digest
    of its content, so a stored chunk is never written again.

    Args:
        arrays: uint8 [N, S, bytes], contents of each slot; several arrays are concatenated.
        leaves: float32 [N S], priorities; empty without.
        keep: Number of newest slots to save; None saves all.
    """

    def __init__(
        self,
        arrays: list[NDArray[np.uint8]],
        leaves: NDArray[np.float32],
        keep: int | None = None,
    ) -> None:
        self._arrays, self._leaves = arrays, leaves
        self._slots = arrays[0].shape[1]
        self._keep = self._slots if keep is None else min(keep, self._slots)
        self._length = -(-self._slots // CHUNKS)
        self._names: dict[int, str] = {}  # of full chunks

    def save(self, written: NDArray[np.int64]) -> Mapping[str, ChunkBuilder]:
        """Return builders of chunks by name.

        Args:
            written: int64 [N], number of completed slots of each environment.
        """
        full = int(written.min()) // self._length
        oldest = max(0, int(written.min()) - self._keep + 1) // self._length
        chunks: dict[str, ChunkBuilder] = {}
        self._names = {k: name for k, name in self._names.items() if k >= oldest}
        for k in range(oldest, int(written.max()) // self._length + 1):
            if k in self._names:
                chunks[self._names[k]] = partial(
                    self._content, k, written.copy()
                )  # written only if the file is missing
                continue
            content = self._content(k, written)
            name = f"{k:08d}-{_digest(content)}"
            chunks[name] = partial(np.asarray, content)
            if k < full:
                self._names[k] = name
        if len(self._leaves):
            leaves = self._leaves.copy()
            chunks[f"{PRIORITIES}-{_digest(leaves)}"] = partial(np.asarray, leaves)
        return chunks

    def load(self, written: NDArray[np.int64], chunks: Iterable[tuple[str, NDArray[Any]]]) -> None:
        """Restore chunks from `save`. Slots that were overwritten since are skipped."""
        full = int(written.min()) // self._length
        for name, content in chunks:
            place, _, _ = name.partition("-")
            if place == PRIORITIES:
                self._leaves[:] = content
                continue
            k = int(place)
            self._put(k, written, content)
            if k < full:
                self._names[k] = name

    def invalidate(self, number: int) -> None:
        """Mark the chunk of slot `number` as changed."""
        self._names.pop(number // self._length, None)

    def _live(self, k: int, written: NDArray[np.int64]) -> tuple[Any, Any]:
        """Return the slots [Q] of chunk k, and whether each environment still has them, [N, Q]."""
        numbers = k * self._length + np.arange(self._length)
        behind = written[:, None] - numbers
        return numbers % self._slots, (behind >= 0) & (behind < self._keep)

    def _content(self, k: int, written: NDArray[np.int64]) -> NDArray[np.uint8]:
        slots, live = self._live(k, written)
        width = sum(array.shape[2] for array in self._arrays)
        content = np.empty((*live.shape, width), np.uint8)
        np.concatenate([array[:, slots] for array in self._arrays], axis=2, out=content)
        content[~live] = 0
        return content

    def _put(self, k: int, written: NDArray[np.int64], content: NDArray[np.uint8]) -> None:
        slots, live = self._live(k, written)
        envs, places = np.nonzero(live)
        begin = 0
        for array in self._arrays:
            end = begin + array.shape[2]
            array[envs, slots[places]] = content[envs, places, begin:end]
            begin = end


def _digest(content: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(content).data).hexdigest()[:16]
