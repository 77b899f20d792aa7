"""Storage of a replay's observations: in the rings' rows, beside them, or rendered again.

A kernel's observation is a function of its record. A replay may therefore store the STATE fields
that `observe` and `mask` read, found in their source, with the index of the sub-environment's
Params record. The kernel renders the observation again when a batch is gathered. These functions
are a template like `kernels/loop.py`: the names declared before them are bound to the functions of
one kernel.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from slipstream.jit import codegen
from slipstream.jit.alignment import aligned_zeros
from slipstream.kernels.compiler import (
    bounds_checked_functions,
    has_action_source,
    make_data_source,
)
from slipstream.kernels.kernel import Kernel, KernelData
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import FinalObs, VectorEnv
from slipstream.rl.compiled_loops import f4, i8
from slipstream.rl.experience.replay.ring import (
    BATCH,
    RING,
    Batch,
    Ring,
    end_transition,
    end_truncated,
    gather_outcome,
    loops,
    write_examples,
)
from slipstream.rl.experience.rollout import Rollout

_NO_OBS = np.zeros((0, 0), np.float32)


class ReplayLoops(NamedTuple):
    """Functions that compiled loops call to write a replay and to gather batches.

    Attributes:
        gather, write: Compiled functions; see `ring.py` for their arguments.
        store: Current second argument of both.
    """

    gather: Any
    write: Any
    store: tuple[Any, ...]


class EpisodeEnds(NamedTuple):
    """Final observations of a step.

    Attributes:
        finals: The observations.
        final_of: int64 [E], index of an environment's final observation, -1 for none.
    """

    finals: FinalObs
    final_of: NDArray[np.int64]


class Storage(ABC):
    """Stores the observations of E environments; the Ring stores the rest of a transition.

    Attributes:
        width: Columns of an observation in the ring's rows.
        raw: uint8 [E, S, bytes], data beside the rows; None without.
        stores_masks: Whether the ring has to store masks.
    """

    width: int = 0
    raw: NDArray[np.uint8] | None = None
    stores_masks: bool = True

    @abstractmethod
    def begin(self, ring: Ring, obs: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        """Store the observations at the heads: obs [E, *shape], mask [E, mask_size] or [E, 0]."""

    @abstractmethod
    def write(
        self, ring: Ring, rollout: Rollout, t: int, mask: NDArray[np.bool_], ended: EpisodeEnds
    ) -> None:
        """Write step t of every environment.

        Args:
            ring: Ring.
            rollout: Rollout that contains the step.
            t: Row of the step.
            mask: bool [E, mask_size], [E, 0] without masks.
            ended: Final observations of episodes truncated in this step.
        """

    @abstractmethod
    def gather(
        self, ring: Ring, m: int, index: NDArray[np.int64], n: int, gamma: float, batch: Batch
    ) -> None:
        """Fill a batch; see `gather` in `ring.py`."""

    @abstractmethod
    def find_mismatches(self, ring: Ring, obs: NDArray[Any]) -> NDArray[np.bool_]:
        """Return whether each head differs from these observations, bool [E]."""

    @property
    def loops(self) -> ReplayLoops | None:
        """Functions for compiled loops; None if the storage has no compiled implementation."""
        return None


class DenseStorage(Storage):
    """float32 observations in the ring's rows."""

    def __init__(self, spec: EnvSpec) -> None:
        self.width = int(np.prod(spec.observation_shape, dtype=np.int64))
        self._loops = loops()
        choices = spec.action_dtype == np.int64
        self._write = self._loops["write_discrete" if choices else "write_continuous"]

    def begin(self, ring: Ring, obs: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        self._loops["begin"](ring, (), 0, len(obs), self._columns(obs), mask)

    def write(
        self, ring: Ring, rollout: Rollout, t: int, mask: NDArray[np.bool_], ended: EpisodeEnds
    ) -> None:
        finals, final_of = ended
        self._write(
            *(ring, (), 0, len(final_of), rollout.actions[t], rollout.reward[t]),
            *(rollout.terminated[t], rollout.truncated[t], rollout.valid[t]),
            *(self._columns(rollout.obs[t + 1]), mask, self._columns(finals.obs), final_of),
        )

    def gather(
        self, ring: Ring, m: int, index: NDArray[np.int64], n: int, gamma: float, batch: Batch
    ) -> None:
        self._loops["gather"](ring, (), m, index, n, gamma, batch)

    def find_mismatches(self, ring: Ring, obs: NDArray[Any]) -> NDArray[np.bool_]:
        kept = ring.rows[np.arange(len(obs)), ring.head, : self.width]
        other = kept.view(np.uint32) != self._columns(obs).view(np.uint32)
        return np.asarray(other.any(1), np.bool_)

    @property
    def loops(self) -> ReplayLoops | None:
        return ReplayLoops(self._loops["gather"], self._write, ())

    def _columns(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = obs.reshape(len(obs), self.width)
        return rows


class ImageStorage(DenseStorage):
    """uint8 observations beside the rows, gathered by array operations."""

    def __init__(self, spec: EnvSpec, total_envs: int, slots: int) -> None:
        super().__init__(spec)
        self.width = 0
        self._rows = aligned_zeros((total_envs, slots, *spec.observation_shape), np.uint8)
        self.raw = self._rows.reshape(total_envs, slots, -1)
        self._slots, self._all_envs = slots, np.arange(total_envs)

    def begin(self, ring: Ring, obs: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        super().begin(ring, obs, mask)
        self._rows[self._all_envs, ring.head] = obs

    def write(
        self, ring: Ring, rollout: Rollout, t: int, mask: NDArray[np.bool_], ended: EpisodeEnds
    ) -> None:
        super().write(ring, rollout, t, mask, ended)
        finals, final_of = ended
        self._rows[self._all_envs, ring.head] = rollout.obs[t + 1]
        is_cut = rollout.truncated[t] & ~rollout.terminated[t] & rollout.valid[t] & (final_of >= 0)
        envs = np.flatnonzero(is_cut)
        self._rows[envs, (ring.head[envs] - 1) % self._slots] = finals.obs[final_of[envs]]

    def gather(
        self, ring: Ring, m: int, index: NDArray[np.int64], n: int, gamma: float, batch: Batch
    ) -> None:
        places = np.zeros((len(index), 3), np.int64)
        columns = batch._replace(obs=_NO_OBS, obs_next=_NO_OBS)
        self._loops["gather_outcomes"](ring, m, index, n, gamma, places, columns)
        envs, here, after = places.T
        batch.obs[:] = self._rows[envs, here]
        batch.obs_next[:] = self._rows[envs, after]

    def find_mismatches(self, ring: Ring, obs: NDArray[Any]) -> NDArray[np.bool_]:
        other = self._rows[self._all_envs, ring.head] != obs
        return np.asarray(other.reshape(len(obs), -1).any(1), np.bool_)

    @property
    def loops(self) -> None:
        return None

    def _columns(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        return np.zeros((len(obs), 0), np.float32)


def observed_fields(kernel: Kernel) -> tuple[str, ...] | None:
    """Return the STATE fields that `observe`, `mask` and their helpers may read.

    A record with these fields renders the same observation as the whole record. The result is None
    if the source uses the record in a way that cannot be followed, such as in a tuple.

    Returns:
        Names in the order of STATE.
    """
    names = kernel.STATE.names or ()
    fields: set[str] = set()
    functions = [f for f in (kernel.observe, kernel.mask) if f is not None]
    if not all(_collect_fields(f, frozenset({0}), fields, set()) for f in functions):
        return None
    return tuple(name for name in names if name in fields)


def _collect_fields(
    function: Callable[..., Any],
    records: frozenset[int],
    fields: set[str],
    seen: set[tuple[Any, frozenset[int]]],
) -> bool:
    """Add the fields that a function reads from its record arguments.

    Args:
        function: Plain function.
        records: Positions of the record arguments.
        fields: Names, added to.
        seen: Visited calls, added to.

    Returns:
        Whether every use of the record could be followed.
    """
    if (function, records) in seen:
        return True
    seen.add((function, records))
    if not isinstance(function, FunctionType):
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return False
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    record_names = {arguments[place] for place in records if place < len(arguments)}
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Name) and node.id in record_names):
            continue
        parent = parents[node]
        if isinstance(parent, ast.Attribute) and isinstance(parent.ctx, ast.Load):
            fields.add(parent.attr)
        elif not (
            isinstance(parent, ast.Call)
            and _collect_call_fields(parent, function, record_names, fields, seen)
        ):
            return False
    return True


def _collect_call_fields(
    call: ast.Call,
    caller: FunctionType,
    record_names: set[str],
    fields: set[str],
    seen: set[tuple[Any, frozenset[int]]],
) -> bool:
    """Follow a call that receives the record."""
    helper = caller.__globals__.get(call.func.id) if isinstance(call.func, ast.Name) else None
    if not isinstance(helper, FunctionType):
        return False
    arguments = helper.__code__.co_varnames[: helper.__code__.co_argcount]
    places = {i for i, value in enumerate(call.args) if _is_name(value, record_names)}
    named = {word.arg for word in call.keywords if _is_name(word.value, record_names)}
    if not named <= set(arguments):
        return False
    places |= {arguments.index(name) for name in named if name is not None}
    return _collect_fields(helper, frozenset(places), fields, seen)


def _is_name(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


class StateLayout(NamedTuple):
    """Layout of a stored observation.

    Attributes:
        dtype: Of a record with the fields f0, f1, ...
        names: STATE field of each; None is the index of the Params record.
    """

    dtype: np.dtype[Any]
    names: tuple[str | None, ...]


def make_state_layout(kernel: Kernel, spec: EnvSpec) -> StateLayout | None:
    """Return the layout; None if the kernel cannot render an observation from stored fields."""
    observed = observed_fields(kernel)
    if observed is None or spec.players > 1:
        return None
    fields: list[tuple[str | None, np.dtype[Any]]] = [
        (name, kernel.STATE[name]) for name in observed
    ]
    fields.append((None, np.dtype("i4")))
    fields.sort(key=lambda field: -field[1].base.itemsize)  # every field is aligned
    dtype = np.dtype([(f"f{i}", kind) for i, (_, kind) in enumerate(fields)])
    return StateLayout(dtype, tuple(name for name, _ in fields))


def storage_bytes(kernel: Kernel, loaded: KernelData, spec: EnvSpec) -> int | None:
    """Return the bytes of one stored observation; None if it cannot be rendered again."""
    kept = make_state_layout(kernel.specialize(loaded), spec)
    return None if kept is None else kept.dtype.itemsize


class StateFieldStorage(Storage):
    """STATE fields of kernel records; the kernel's `observe` and `mask` render observations again.

    Args:
        envs: The environments, in consecutive slices of E.
        slots: S of each ring.
    """

    stores_masks = False

    def __init__(self, envs: Sequence[VectorEnv], slots: int) -> None:
        self._envs = [cast(KernelVectorEnv, env) for env in envs]
        first = self._envs[0]
        kept = make_state_layout(first.kernel, first.spec)
        assert kept is not None
        dtype = kept.dtype
        edges = np.cumsum([0, *(env.num_envs for env in envs)]).tolist()
        self._ranges = list(itertools.pairwise(edges))
        self._kept = aligned_zeros((edges[-1], slots), dtype)
        self.raw = self._kept.view(np.uint8).reshape(edges[-1], slots, dtype.itemsize)
        self._first = np.concatenate([env.first_param_rows for env in self._envs])
        self._scratch = np.zeros(1, first.kernel.STATE)
        for env in self._envs:
            env.keep_final_states()
        self._loops = _compile(first, kept, self._store(0))

    @staticmethod
    def is_supported(envs: Sequence[VectorEnv]) -> bool:
        """Return whether all environments are kernels that can render observations from fields."""
        return all(
            isinstance(env, KernelVectorEnv) and make_state_layout(env.kernel, env.spec) is not None
            for env in envs
        )

    @staticmethod
    def observation_bytes(envs: Sequence[VectorEnv]) -> int:
        """Return the bytes of one stored observation."""
        env = cast(KernelVectorEnv, envs[0])
        size = storage_bytes(env.kernel, env.loaded, env.spec)
        assert size is not None
        return size

    def _store(self, i: int, final: NDArray[Any] | None = None) -> tuple[Any, ...]:
        """Return the arguments of the loops besides the ring, for slice i of the environments."""
        env = self._envs[i]
        records = (env.state, env.episode_state, env.final_states if final is None else final)
        shared = (tuple(env.loaded.data), env.params, self._first, self._kept, self._scratch)
        return (*shared, *records)

    def begin(self, ring: Ring, obs: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        for i, (lo, hi) in enumerate(self._ranges):
            self._loops["begin_fields"](ring, self._store(i), lo, hi)

    def write(
        self, ring: Ring, rollout: Rollout, t: int, mask: NDArray[np.bool_], ended: EpisodeEnds
    ) -> None:
        finals, final_of = ended
        for i, (lo, hi) in enumerate(self._ranges):
            self._loops["write_fields"](
                *(ring, self._store(i, finals.states), lo, hi, rollout.actions[t]),
                *(rollout.reward[t], rollout.terminated[t], rollout.truncated[t]),
                *(rollout.valid[t], _NO_OBS, mask, _NO_OBS, final_of),
            )

    def gather(
        self, ring: Ring, m: int, index: NDArray[np.int64], n: int, gamma: float, batch: Batch
    ) -> None:
        self._loops["gather_fields"](ring, self._store(0), m, index, n, gamma, batch)

    def find_mismatches(self, ring: Ring, obs: NDArray[Any]) -> NDArray[np.bool_]:
        return np.zeros(len(obs), np.bool_)  # kernels are restored exactly

    @property
    def loops(self) -> ReplayLoops:
        """Functions for compiled loops. `write` works on environments of one slice."""
        return ReplayLoops(
            self._loops["gather_fields"], self._loops["write_fields"], self._store(0)
        )


def _compile(env: KernelVectorEnv, kept: StateLayout, store: tuple[Any, ...]) -> dict[str, Any]:
    """Compile the template below for one kernel."""
    kernel, spec = env.kernel, env.spec
    functions: dict[str, Any] = {function.__name__: function for function in _FUNCTIONS}
    functions["observe"] = kernel.observe
    if kernel.mask is not None:
        functions["mask"] = kernel.mask
    entries: list[Any] = [gather_fields, begin_fields, write_fields]
    shape = spec.observation_shape
    shaped = len(shape) > 1 and spec.observation_dtype == np.float32
    text = "\n\n\n".join(
        [
            "from typing import Any",
            "\n".join(make_data_source(kernel)),
            *_record_source(kernel, kept),
            "\n".join(_mask_source(kernel, spec)),
            codegen.get_source([render_slot, *entries]),
        ]
    )
    action = f4(2) if spec.action_dtype == np.float32 else i8(2)
    batch = BATCH
    if spec.observation_dtype == np.uint8:
        pixels = np.zeros((1, *spec.observation_shape), np.uint8)
        batch = batch._replace(obs=pixels, obs_next=pixels)
    return codegen.compile_module(
        f"{kernel.name}_replay",
        text + "\n",
        {
            "gather_fields": (RING, store, 0, i8(1), 1, 1.0, batch),
            "begin_fields": (RING, store, 0, 1),
            "write_fields": write_examples(action, store),
        },
        {name: cast(FunctionType, function) for name, function in functions.items()},
        {"Data": kernel.Data, "SHAPED": shaped, "SHAPE": shape if shaped else ()},
        inline=False,
        checked=bounds_checked_functions(kernel) & functions.keys(),
    )


def _record_source(kernel: Kernel, kept: StateLayout) -> list[str]:
    """Return the source of `pack`, `unpack` and `param_index`."""
    pack, unpack, which = ["def pack(s, which, kept):"], ["def unpack(kept, s):"], []
    for number, name in enumerate(kept.names):
        if name is None:
            pack.append(f"    kept.f{number} = which")
            which = ["def param_index(kept):", f"    return kept.f{number}"]
            continue
        shape = kernel.STATE[name].shape
        for axis, size in enumerate(shape):
            loop = f"{'    ' * (axis + 1)}for i{axis} in range({size}):"
            pack.append(loop)
            unpack.append(loop)
        indent = "    " * (len(shape) + 1)
        place = ", ".join(f"i{axis}" for axis in range(len(shape)))
        at = f"[{place}]" if place else ""
        pack.append(f"{indent}kept.f{number}{at} = s.{name}{at}")
        unpack.append(f"{indent}s.{name}{at} = kept.f{number}{at}")
    return ["\n".join(lines) for lines in (pack, [*unpack, "    pass"], which)]


def _mask_source(kernel: Kernel, spec: EnvSpec) -> list[str]:
    """Return the source of `write_mask`. If a truncated state allows no action, all are allowed."""
    if kernel.mask is None:
        return ["def write_mask(s, p, d, masks, b):", "    pass"]
    return [
        *has_action_source(spec),
        "",
        "",
        "def write_mask(s, p, d, masks, b):",
        "    mask(s, p, d, masks[b])",
        "    if not allows(masks[b]):",
        f"        for i in range({spec.num_actions}):",
        "            masks[b, i] = True",
    ]


# Bound to one kernel's functions by codegen.
observe: Any = None
make_data: Any = None  # tuple of arrays -> the kernel's Data
pack: Any = None  # (s, which, kept): stores the observed fields
unpack: Any = None  # (kept, s): restores them
param_index: Any = None  # (kept): index of its Params record
write_mask: Any = None  # (s, p, d, masks, b): writes the mask, if any, into row b

SHAPED = False  # whether batch rows are flat and observations are not
SHAPE: tuple[int, ...] = ()  # shape of such an observation

_FUNCTIONS = (gather_outcome, end_transition, end_truncated)


def render_slot(store: Any, e: int, slot: int, rows: Any, masks: Any, b: int) -> None:
    """Render the observation of environment e in a slot, and its mask, into row b."""
    arrays, params, first, kept, scratch = store[:5]
    d = make_data(arrays)
    s = scratch[0]
    unpack(kept[e, slot], s)
    p = params[first[e] + param_index(kept[e, slot])]
    if SHAPED:  # Numba drops the other branch
        observe(s, p, d, rows[b].reshape(SHAPE))
    else:
        observe(s, p, d, rows[b])
    write_mask(s, p, d, masks, b)


def gather_fields(
    ring: Any, store: Any, m: int, index: Any, n: int, gamma: float, batch: Any
) -> None:
    """Fill a batch with rendered observations; see `gather` in `ring.py`."""
    for b in range(len(index)):
        e, slot, after = gather_outcome(ring, m, index[b], n, gamma, b, batch)
        render_slot(store, e, slot, batch.obs, batch.mask, b)
        render_slot(store, e, after, batch.obs_next, batch.mask_next, b)


def begin_fields(ring: Any, store: Any, lo: int, hi: int) -> None:
    """Store the state at the heads of environments lo..hi-1."""
    first, kept = store[2:4]
    state, episode_state, _ = store[5:8]
    for e in range(lo, hi):
        pack(state[e - lo], episode_state[e - lo].param_row - first[e], kept[e, ring.head[e]])


def write_fields(
    ring: Any, store: Any, lo: int, hi: int, action: Any, reward: Any, terminated: Any,
    truncated: Any, valid: Any, obs: Any, mask: Any, final_obs: Any, final_of: Any,
) -> None:  # fmt: skip
    """Write one step of environments lo..hi-1 of one slice; see `write` in `ring.py`."""
    first, kept = store[2:4]
    state, episode_state, final_state = store[5:8]
    for e in range(lo, hi):
        which = episode_state[e - lo].param_row - first[e]
        real = valid[e] and (terminated[e] or not truncated[e] or final_of[e] >= 0)
        if end_transition(ring, e, action[e], reward[e], terminated[e], truncated[e], real):
            pack(final_state[final_of[e]], which, kept[e, ring.head[e]])
            end_truncated(ring, e)
        pack(state[e - lo], which, kept[e, ring.head[e]])
