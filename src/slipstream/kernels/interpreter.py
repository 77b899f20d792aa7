"""Interpreted kernel calls: records with attributes, and diagnosis of faults.

Compiled code reports that an index is out of range, not which one. The loop of a user's kernel
stores the state before each step, and interpreted runs are bit-identical. `FaultDiagnosis` repeats
the failed call, which raises the same error with file, line and array in its traceback.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import KernelError, wrap_user_error
from slipstream.kernels.loop import AT


class Record:
    """One record. Unlike `numpy.record` it has no methods that could hide a field named `size`.

    Its class is generated per dtype, with a property for each field: reads take a fifth of the time
    of `numpy.void`, which would dominate interpreted kernels.
    """

    # Two underscores: the mangled names cannot clash with a field of a kernel.
    __slots__ = ("__columns", "__row")

    def __init__(self, columns: Mapping[str, NDArray[Any]], row: int) -> None:
        object.__setattr__(self, "_Record__columns", columns)
        object.__setattr__(self, "_Record__row", row)

    def __getattr__(self, name: str) -> Any:
        raise self.__without(name)

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            column = self.__columns[name]
        except KeyError:
            raise self.__without(name) from None
        column[self.__row] = value

    def __without(self, name: str) -> AttributeError:
        return AttributeError(f"there is no field `{name}` among {', '.join(self.__columns)}")

    @staticmethod
    def field(name: str) -> property:
        """Return a property that reads one field."""
        return property(lambda record: record.__columns[name][record.__row])


@functools.lru_cache(maxsize=256)
def _record_of(dtype: np.dtype[Any]) -> type[Record]:
    fields = {name: Record.field(name) for name in dtype.names or ()}
    return type("Record", (Record,), {"__slots__": (), **fields})


class Records:
    """Records of an array [n]; they share its memory."""

    __slots__ = ("_columns", "_made", "_record")

    def __init__(self, array: NDArray[Any]) -> None:
        self._record = _record_of(array.dtype)
        self._columns = {name: array[name] for name in array.dtype.names or ()}
        self._made: dict[int, Record] = {}

    def __getitem__(self, row: int) -> Record:
        made = self._made.get(row)
        if made is None:
            made = self._made[row] = self._record(self._columns, row)
        return made


if TYPE_CHECKING:
    from slipstream.kernels.kernel_vector_env import KernelVectorEnv

_QUIET: Any = {"over": "ignore", "invalid": "ignore", "divide": "ignore"}


def describe_env(env: KernelVectorEnv, env_id: int) -> str:
    """Return index, seed and episode of an environment, for messages."""
    state = env.episode_state[env_id]
    return (
        f"environment {env.first_env + env_id} (seed {state['seed']}, index {state['index']}, "
        f"episode {int(state['episode']) - 1})"
    )


def non_finite_error(
    env: KernelVectorEnv, fault: int, actions: NDArray[Any] | None, t: int | None
) -> KernelError:
    """Return the error for an environment that returned an unusable number.

    Args:
        fault: as in `kernels/loop.py`: e + 1 if the reward of environment e is not finite, negative
            if its observation or mask is unusable.
        actions: the last ones; t: the step, by default counted within the environment's episode.
    """
    e, kernel = abs(fault) - 1, env.kernel
    state = {name: env.state[name][e].tolist() for name in kernel.STATE.names or ()}
    who = describe_env(env, e)
    if fault < 0:
        return KernelError(
            f"{kernel.module.__file__}: Kernel `{kernel.name}`, {who}: "
            f"{FaultDiagnosis(env, e).describe_bad_row()}. State: {state}."
        )
    t = int(env.episode_state["length"][e]) - 1 if t is None else t
    last = "" if actions is None else f", last action {actions[e].tolist()}"
    return KernelError(
        f"Kernel `{kernel.name}` returned a reward that is NaN or infinite: {who}, step {t}"
        f"{last}, state after it {state}. Guard the divisor or the argument of log or sqrt "
        "that produced it."
    )


class FaultDiagnosis:
    """Replay of one environment's last step, reset and observation on copies of its records.

    Args:
        env: compiled with checks.
        env_id: environment to replay; by default the one at which the loop stopped.
    """

    def __init__(self, env: KernelVectorEnv, env_id: int | None = None) -> None:
        self._env, self._kernel = env, env.kernel
        self.env_id = int(env.counts[AT]) if env_id is None else env_id
        self._book = env.episode_state[self.env_id]
        self._p = Records(env.params)[int(self._book["param_row"])]
        self._now = env.state[self.env_id : self.env_id + 1].copy()

    def explain(self, error: BaseException, actions: NDArray[Any] | None) -> KernelError:
        """Return the error to raise in place of the compiled code's `error`.

        Args:
            actions: [E, ...] of the current step; None if there was none.
        """
        where = f"Kernel `{self._kernel.name}`, {describe_env(self._env, self.env_id)}"
        if actions is not None:
            where += f", action {actions[self.env_id].tolist()}"
        function: Any = None
        try:
            with np.errstate(**_QUIET):
                for function, arguments in self._calls(actions):
                    function(*arguments)
        except Exception as found:
            return wrap_user_error(where, function, found)
        return KernelError(
            f"{self._kernel.module.__file__}: {where}: {type(error).__name__}: {error}, in "
            "`reset`, `step`, `observe`, `mask` or `finalize_episode`. Look for an index that may "
            "be out of range."
        )

    def describe_bad_row(self) -> str:
        """Describe why the current observation or mask is unusable."""
        env, spec = self._env, self._env.spec
        for player in range(spec.players):
            who = () if spec.players == 1 else (player,)
            obs, mask = self._rows()
            with np.errstate(**_QUIET):
                env.kernel.observe(Records(self._now)[0], self._p, env.loaded.data, *who, obs)
                wrong = np.argwhere(~np.isfinite(obs)).tolist() if obs.dtype.kind == "f" else []
                if wrong:
                    at = ", ".join(str(i) for i in wrong[0])
                    return (
                        f"`observe` wrote {float(obs[tuple(wrong[0])])} into out[{at}]: guard the "
                        "divisor or the argument of log or sqrt that produced it"
                    )
                if env.kernel.mask is not None:
                    env.kernel.mask(Records(self._now)[0], self._p, env.loaded.data, *who, mask)
                    if (none := first_empty_component(mask, spec.nvec)) is not None:
                        return empty_mask_message(none, spec.nvec)
        return "`observe` wrote NaN or infinity at the truncation of an episode"

    def _calls(self, actions: NDArray[Any] | None) -> Any:
        """Yield (function, arguments) in the loop's order; each runs before the next is needed."""
        env, kernel, p, d = self._env, self._kernel, self._p, self._env.loaded.data
        if actions is not None:
            before = np.zeros(1, kernel.STATE)
            before.view(np.uint64)[:] = env.state_before_step
            s = Records(before)[0]
            ended: list[bool] = []

            def step(*arguments: Any) -> None:
                _, terminal, cut = kernel.step(*arguments)
                ended.append(bool(terminal or cut))

            yield step, (s, actions[self.env_id].copy(), p, d)
            yield from self._observation_calls(s)
            limit, length = int(self._book["limit"]), int(self._book["length"])
            if not (ended[0] or length == 0 or 0 < limit <= length):
                return
            if kernel.finalize_episode is not None:
                yield kernel.finalize_episode, (s, p, d)
        begun = np.zeros(1, kernel.STATE)
        begun["key"] = self._now["key"]
        s = Records(begun)[0]
        yield kernel.reset, (s, p, d)
        yield from self._observation_calls(s)
        yield from self._observation_calls(Records(self._now)[0])  # after a state was restored

    def _observation_calls(self, s: Any) -> Any:
        kernel, d, spec = self._kernel, self._env.loaded.data, self._env.spec
        for player in range(spec.players):
            who = () if spec.players == 1 else (player,)
            obs, mask = self._rows()
            yield kernel.observe, (s, self._p, d, *who, obs)
            if kernel.mask is not None:
                yield kernel.mask, (s, self._p, d, *who, mask)

    def _rows(self) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        spec = self._env.spec
        obs = np.zeros(spec.observation_shape, spec.observation_dtype)
        return obs, np.ones(spec.num_actions, np.bool_)


def first_empty_component(mask: NDArray[np.bool_], components: tuple[int, ...]) -> int | None:
    """Return the index of the first action component without an allowed action."""
    first = 0
    for number, size in enumerate(components):
        if not mask[first : first + size].any():
            return number
        first += size
    return None


def empty_mask_message(component: int, components: tuple[int, ...]) -> str:
    """Return the message for an action component without an allowed action."""
    which = "" if len(components) == 1 else f" for action[{component}]"
    return (
        f"`mask` allows nothing{which}: allow at least one action until the episode ends, such as "
        "one that does nothing (after the last step, it may allow none)"
    )
