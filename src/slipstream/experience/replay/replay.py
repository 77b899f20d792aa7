"""The replay of M members, for whoever writes it, draws from it, saves it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.spec import Spec
from slipstream.experience.replay.chunks import Chunks, Made
from slipstream.experience.replay.compiled import loops
from slipstream.experience.replay.gather import Batch
from slipstream.experience.replay.plan import ReplayPlan
from slipstream.experience.replay.ring import ENDING, GOES_ON, NONE, TRUNCATED, Ring, move_on
from slipstream.experience.replay.storage import Pixels, Storage, allocate
from slipstream.experience.replay.tree import tree_levels
from slipstream.experience.rollout import Rollout

_APART = np.zeros((0, 0), np.float32)  # observations that lie elsewhere


class Sample(NamedTuple):
    """Batches of g members, and where they came from.

    Attributes:
        index: int64 [g, B]; weight: float32 [g, B], of importance.
        batch: a Batch whose arrays have a leading [g].
    """

    index: NDArray[np.int64]  # type: ignore[assignment]  # hides tuple.index
    weight: NDArray[np.float32]
    batch: Batch


class Replay:
    """M members with N copies each; every copy has a ring of its own.

    Args:
        plan: what is kept.
        spec: of the environments.
        members: M; num_envs: N.
        choices: that the environment's action mask covers, 0 without.
        storage: where observations are kept; by default in the rings' rows, images beside them.

    Attributes:
        ring: what compiled loops take.
        slots: S of each ring.
    """

    def __init__(
        self,
        plan: ReplayPlan,
        spec: Spec,
        members: int,
        num_envs: int,
        choices: int = 0,
        storage: Storage | None = None,
    ) -> None:
        plan.check(num_envs)
        self.plan, self.spec, self.members, self.num_envs = plan, spec, members, num_envs
        copies, self.slots = members * num_envs, slots_of(plan, spec, num_envs)
        pixels = spec.observation_dtype == np.uint8
        if storage is None and pixels:
            storage = Pixels(copies, self.slots, spec.observation_shape, plan.mapped)
        self.storage = storage
        self._numbers = int(np.prod(spec.observation_shape, dtype=np.int64))
        width = self._numbers if storage is None else 0
        levels, nodes = tree_levels(num_envs * self.slots)
        if plan.alpha == 0.0:
            nodes = 0
        block = (copies, self.slots)
        self.ring = Ring(
            rows=allocate((*block, width + spec.action_width + 2), np.float32, plan.mapped),
            mask=allocate((*block, choices) if choices else (0, 0, 0), np.bool_, plan.mapped),
            head=np.zeros(copies, np.int64),
            written=np.zeros(copies, np.int64),
            span=np.ones(members, np.int64),
            held=np.zeros(members, np.int64),
            steps=np.zeros(members, np.int64),
            tree=np.zeros((members, nodes)),
            least=np.full((members, max(0, nodes - int(levels[1]))), np.inf),
            levels=levels,
            peak=np.ones(members),
            width=width,
            copies=num_envs,
            alpha=plan.alpha,
        )
        self.ring.rows[..., ENDING] = NONE
        self._loops = loops()
        self._choices = choices
        self._places: NDArray[np.int64] = np.zeros((0, 3), np.int64)
        self._samples: dict[tuple[int, int], Sample] = {}
        self._every = np.arange(copies)
        self._nothing = np.zeros((copies, 0), np.bool_)
        self._no_obs = np.zeros((copies, 0), np.float32)
        self._chunks = [self._make_chunks(m) for m in range(members)]

    def _make_chunks(self, m: int) -> Chunks:
        ring, own = self.ring, self._copies(m)
        arrays = [ring.rows[own].view(np.uint8)]
        if self._choices:
            arrays.append(ring.mask[own].view(np.uint8))
        if self.storage is not None:
            arrays.append(self.storage.raw[own])
        leaves = self.num_envs * self.slots if ring.tree.shape[1] else 0
        return Chunks(arrays, ring.tree[m, :leaves])

    @property
    def held(self) -> NDArray[np.int64]:
        """Transitions of each member that can be drawn, int64 [M]."""
        held: NDArray[np.int64] = self.ring.held
        return held

    @property
    def steps(self) -> NDArray[np.int64]:
        """Environment steps of each member so far, int64 [M]."""
        steps: NDArray[np.int64] = self.ring.steps
        return steps

    @property
    def nbytes(self) -> int:
        """Bytes of all members."""
        arrays = [value for value in self.ring if isinstance(value, np.ndarray)]
        beside = 0 if self.storage is None else self.storage.raw.nbytes
        return sum(array.nbytes for array in arrays) + beside

    # Written.

    def begin(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None, shown: Any = None) -> None:
        """Takes the first observations [E, *shape], and what is allowed, [E, choices].

        Args:
            shown: what the storage keeps of them, [E]; by default the observations.
        """
        allowed = self._nothing if mask is None or not self._choices else mask
        self._loops["begin_rows"](self.ring, self._flat(obs), allowed)
        if self.storage is not None:
            self.storage.put(self._every, self.ring.head, obs if shown is None else shown)

    def write(
        self,
        rollout: Rollout,
        t: int,
        final_obs: NDArray[Any],
        final_of: NDArray[np.int64],
        shown: Any = None,
        finally_shown: Any = None,
    ) -> None:
        """Takes step t of every copy.

        Args:
            rollout: where it was written; t: row.
            final_obs: [n, *shape], observations before the reset, of those that were cut short.
            final_of: int64 [E], which of them belongs to a copy; -1 for none.
            shown, finally_shown: what the storage keeps of the next observations, [E], and of the
                final ones, [n]; by default the observations.
        """
        name = "write_numbers" if rollout.actions.dtype == np.float32 else "write_choices"
        mask = self._nothing
        if rollout.mask is not None and self._choices:
            mask = rollout.mask[t + 1]
        cut = rollout.truncated[t] & ~rollout.terminated[t] & rollout.valid[t] & (final_of >= 0)
        self._loops[name](
            *(self.ring, 0, len(final_of), rollout.actions[t], rollout.reward[t]),
            *(rollout.terminated[t], rollout.truncated[t], rollout.valid[t]),
            *(self._flat(rollout.obs[t + 1]), mask, self._flat(final_obs), final_of),
        )
        if self.storage is None:
            return
        head = self.ring.head
        self.storage.put(self._every, head, rollout.obs[t + 1] if shown is None else shown)
        if cut.any():
            copies = np.flatnonzero(cut)
            what = final_obs if finally_shown is None else finally_shown
            self.storage.put(copies, (head[copies] - 1) % self.slots, what[final_of[copies]])

    @property
    def writer(self) -> Any:
        """The compiled `write_rows` for these actions, for loops that keep what they step."""
        box = self.spec.action_dtype == np.float32
        return self._loops["write_numbers" if box else "write_choices"]

    def _flat(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """[n, *shape] as rows; nothing where they are kept elsewhere."""
        if self.storage is not None:
            return self._no_obs
        rows: NDArray[np.float32] = obs.reshape(len(obs), self._numbers)
        return rows

    # Drawn.

    def make_batch(self, rows: int, members: int | None = None) -> Batch:
        """Memory for B transitions; of several members with a leading axis."""
        lead = (rows,) if members is None else (members, rows)
        spec, width = self.spec, (self._numbers,)
        shape = spec.observation_shape if spec.observation_dtype == np.uint8 else width
        masks = (*lead, self._choices) if self._choices else (*lead[:-1], 0, 0)
        return Batch(
            obs=np.zeros((*lead, *shape), spec.observation_dtype),
            mask=np.ones(masks, np.bool_),
            action=np.zeros((*lead, spec.action_width), np.float32),
            reward=np.zeros(lead, np.float32),
            discount=np.zeros(lead, np.float32),
            obs_next=np.zeros((*lead, *shape), spec.observation_dtype),
            mask_next=np.ones(masks, np.bool_),
        )

    def fill(
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
        """Draws a batch of member m; see `draw` and `gather`.

        Args:
            m: member; its `held` must be above 0.
            key: of the random stream, another one at every call.
            n_step, gamma: rewards that are summed, and their discount.
            beta: how much of the bias of priorities is undone.
            index, weight: int64 and float32 [B], written.
            batch: of `make_batch`, written.
        """
        if self.storage is None:
            self._loops["draw_and_gather"](
                self.ring, m, key, n_step, gamma, beta, index, weight, batch
            )
            return
        if len(self._places) != len(index):
            self._places = np.zeros((len(index), 3), np.int64)
        columns = batch._replace(obs=_APART, obs_next=_APART)
        self._loops["draw"](self.ring, m, key, beta, index, weight)
        self._loops["locate"](self.ring, m, index, n_step, gamma, self._places, columns)
        self.storage.fetch(self._places, batch.obs, batch.obs_next)

    def sample(
        self,
        members: NDArray[np.int64],
        keys: NDArray[np.uint64],
        rows: int,
        n_step: int,
        gamma: NDArray[np.float64],
        beta: float | NDArray[np.float64] = 1.0,
    ) -> Sample:
        """Batches of B rows of some members, one after another; overwritten by the next of as many.

        Args:
            members: int64 [g]; keys: uint64 [g]; gamma: float64 [g]; the rest as for `fill`.
        """
        size = (len(members), rows)
        if size not in self._samples:
            weight, index = np.zeros(size, np.float32), np.zeros(size, np.int64)
            self._samples[size] = Sample(index, weight, self.make_batch(rows, len(members)))
        sample = self._samples[size]
        betas = np.broadcast_to(beta, len(members))
        for i, m in enumerate(members.tolist()):
            own = Batch(*(column[i] for column in sample.batch))
            self.fill(
                *(m, keys[i], n_step, float(gamma[i]), float(betas[i])),
                *(sample.index[i], sample.weight[i], own),
            )
        return sample

    def reprioritise(self, m: int, index: NDArray[np.int64], error: NDArray[np.float32]) -> None:
        """Sets the priorities of member m's transitions by their errors, both [B]."""
        self._loops["new_priorities"](self.ring, m, index, error)

    # Saved.

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """The small part: `written` [E], `steps` and `peak` [M]."""
        ring = self.ring
        return {name: getattr(ring, name).copy() for name in ("written", "steps", "peak")}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from `state_dict()`; there are no transitions until `load_bulk` brings them."""
        ring = self.ring
        for name in ("written", "steps", "peak"):
            getattr(ring, name)[:] = state[name]
        ring.head[:] = ring.written % self.slots
        used = np.minimum(ring.written + 1, self.slots).reshape(self.members, -1)
        ring.span[:] = used.max(1)
        ring.held[:] = 0
        ring.rows[..., ENDING] = NONE
        ring.tree[:] = 0.0

    def bulk(self, member: int) -> Mapping[str, Made]:
        """The large part of a member's: what makes each chunk, by its name; see `chunks.py`."""
        return self._chunks[member].save(self.ring.written[self._copies(member)])

    def load_bulk(self, member: int, chunks: Iterable[tuple[str, NDArray[Any]]]) -> None:
        """Goes on from chunks of `bulk(member)`; where some are missing, their slots are empty."""
        ring, copies = self.ring, self._copies(member)
        self._chunks[member].load(ring.written[copies], chunks)
        real = ring.rows[copies, :, ENDING] < NONE
        ring.held[member] = real.sum()
        if ring.tree.shape[1]:
            leaves = ring.tree[member, : real.size]
            leaves[~real.ravel()] = 0.0
            leaves[real.ravel() & (leaves == 0.0)] = ring.peak[member]
            self._loops["rebuild"](ring.tree[member], ring.least[member], ring.levels)

    def go_on(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        """Looks at the copies as they stand; where one is elsewhere, its episode was cut short.

        Args:
            obs: [E, *shape]; mask: bool [E, choices] or None.
        """
        if self.storage is None:
            kept = self.ring.rows[self._every, self.ring.head, : self.ring.width]
            elsewhere = (kept.view(np.uint32) != self._flat(obs).view(np.uint32)).any(1)
        else:
            elsewhere = self.storage.differ(self._every, self.ring.head, obs)
        copies = np.flatnonzero(elsewhere)
        if not len(copies):
            return
        for e in copies.tolist():
            self._break_off(e)
        allowed = self._nothing if mask is None or not self._choices else mask
        self._loops["begin_rows"](self.ring, self._flat(obs), allowed)
        if self.storage is not None:
            self.storage.put(copies, self.ring.head[copies], obs[copies])

    def _break_off(self, e: int) -> None:
        """What the head of copy e shows becomes a final observation, where a step led to it."""
        ring, m = self.ring, e // self.num_envs
        before = ring.rows[e, (ring.head[e] - 1) % self.slots]
        if before[ENDING] == GOES_ON:
            before[ENDING] = TRUNCATED
            self._chunks[m].forget(int(ring.written[e]) - 1)
            move_on(ring, e, m)

    def _copies(self, member: int) -> slice:
        return slice(member * self.num_envs, (member + 1) * self.num_envs)


def slots_of(plan: ReplayPlan, spec: Spec, num_envs: int) -> int:
    """S of each ring: the transitions, the head, and final observations by the time limit."""
    length, limit = plan.length(num_envs), spec.max_episode_steps
    return length + 1 + (0 if limit is None else -(-length // limit) + 1)
