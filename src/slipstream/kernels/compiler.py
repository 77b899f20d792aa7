"""Build one kernel's batch loop, interpreted or compiled."""

from __future__ import annotations

import re
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from slipstream.core.random import stream
from slipstream.jit import codegen
from slipstream.jit.alignment import prefetch_record
from slipstream.kernels import loop
from slipstream.kernels.kernel import Kernel
from slipstream.kernels.spec import EnvSpec


class Loop(NamedTuple):
    """Entry points of a batch loop; `kernels/loop.py` describes their arguments."""

    advance: Any
    start: Any
    observe_all: Any


def bounds_checked_functions(kernel: Kernel) -> frozenset[str]:
    """Return the functions compiled with bounds checks: all functions of a user's kernel.

    Without checks, a write beyond an array's end corrupts other memory. Built-in kernels are run
    with checks by the tests instead. docs/reference/performance.md, "Checks", has the cost.
    """
    if kernel.built_in:
        return frozenset()
    return frozenset({"reset", "step", "observe", "mask", "prefetch", "finalize_episode"})


def loop_source(kernel: Kernel, spec: EnvSpec, checked: bool = False) -> str:
    """Return the source of one kernel's batch loop: the template plus functions for its records.

    Args:
        checked: include the lines that locate a faulty environment.
    """
    lines = [*make_data_source(kernel), "", "", "def clear(s):"]
    for name in kernel.STATE.names or ():
        lines += _clear_field(name, kernel.STATE[name])
    lines += ["", "", "def copy_metrics(s, row):"]
    first = loop.RETURN + spec.players
    metric_lines = [
        f"    row[{first + i}] = s.{metric.name}" for i, metric in enumerate(spec.metrics)
    ]
    lines += metric_lines or ["    pass"]
    values = {name: getattr(loop, name) for name in loop.CONSTANTS}
    values["RECORD_BYTES"] = min(loop.RECORD_BYTES, kernel.STATE.itemsize)
    values["WORDS"] = kernel.STATE.itemsize // 8
    constants = [f"{name} = {value}" for name, value in values.items()]
    head = "from typing import Any\n\nimport numpy as np"
    source = codegen.get_source((loop.begin, loop.advance, loop.start, loop.observe_all))
    template = specialize(source, kernel, spec, checked)
    if checked:
        lines += ["", "", *_is_finite_source(spec), "", "", *has_action_source(spec)]
    return "\n\n\n".join([head, "\n".join(constants), "\n".join(lines), template]) + "\n"


def make_data_source(kernel: Kernel) -> list[str]:
    """Return the source of `make_data(arrays)`: the kernel's Data from a tuple of arrays."""
    arrays = ", ".join(f"arrays[{i}]" for i in range(len(kernel.Data._fields)))
    return ["def make_data(arrays):", f"    return Data({arrays})"]


def _clear_field(name: str, dtype: np.dtype[Any]) -> list[str]:
    zero = {"f": "0.0", "b": "False", "u": "np.uint64(0)"}.get(dtype.base.kind, "0")
    if not dtype.shape:
        return [f"    s.{name} = {zero}"]
    lines, index = [], []
    for axis, size in enumerate(dtype.shape):
        lines.append(f"{'    ' * (axis + 1)}for i{axis} in range({size}):")
        index.append(f"i{axis}")
    return [*lines, f"{'    ' * (len(index) + 1)}s.{name}[{', '.join(index)}] = {zero}"]


def _is_finite_source(spec: EnvSpec) -> list[str]:
    """Return the source of `numbers(row)`: true if an observation has neither NaN nor infinity."""
    if spec.observation_dtype.kind != "f":
        return ["def numbers(row):", "    return True"]
    names = [f"i{axis}" for axis in range(len(spec.observation_shape))]
    lines = [
        f"{'    ' * (axis + 1)}for i{axis} in range({size}):"
        for axis, size in enumerate(spec.observation_shape)
    ]
    inner = "    " * (len(names) + 1)
    place = f"row[{', '.join(names)}]"
    # NaN and infinity minus themselves are NaN. `&` vectorizes, `and` would not.
    lines += [f"{inner}good = good & ({place} - {place} == 0.0)"]
    return ["def numbers(row):", "    good = True", *lines, "    return good"]


def has_action_source(spec: EnvSpec) -> list[str]:
    """Return the source of `allows(row)`: true if a mask allows an action in every component."""
    lines = ["def allows(row):"]
    first = 0
    for size in spec.nvec:
        lines += ["    some = False", f"    for i in range({first}, {first + size}):"]
        lines += ["        some = some or row[i]", "    if not some:", "        return False"]
        first += size
    return [*lines, "    return True"]


def bound_functions(kernel: Kernel) -> dict[str, FunctionType]:
    """Return the plain functions that the loop's source calls, by name."""
    functions: dict[str, Any] = {
        "reset": kernel.reset,
        "step": kernel.step,
        "observe": kernel.observe,
        "stream": stream,
    }
    for name in ("mask", "finalize_episode", "prefetch"):
        if (function := getattr(kernel, name)) is not None:
            functions[name] = function
    if kernel.prefetch is not None:
        functions["prefetch_record"] = prefetch_record
    return functions


def example_arguments(batch: tuple[Any, ...], out: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    """Return example arguments of the loop's entry points. Their types define the signatures."""
    columns = (out[1], *out[5:])
    return {
        "advance": (0, 0, 0, 0, batch, out),
        "start": (0, 0, batch, *columns),
        "observe_all": (0, 0, batch, *columns),
    }


def build_interpreted_loop(kernel: Kernel, spec: EnvSpec) -> Loop:
    """Return the loop as plain Python: the slow reference that other backends match bit for bit."""
    kernel = kernel._replace(prefetch=None)  # nothing to prefetch
    text = loop_source(kernel, spec, bool(bounds_checked_functions(kernel)))
    module = codegen.build_interpreted(text, bound_functions(kernel), {"Data": kernel.Data})
    return Loop(module.advance, module.start, module.observe_all)


def build_compiled_loop(
    kernel: Kernel, spec: EnvSpec, batch: tuple[Any, ...], out: tuple[Any, ...]
) -> Loop:
    """Return the loop as machine code for arrays of the types of `batch` and `out`.

    Args:
        out: (actions, obs, reward, terminated, truncated), plus masks if the kernel has `mask`.
    """
    entries = example_arguments(batch, out)
    parts = bounds_checked_functions(kernel)
    text = loop_source(kernel, spec, bool(parts))
    constants, functions = {"Data": kernel.Data}, bound_functions(kernel)
    apart = compile_noinline(kernel, batch)
    return Loop(
        **codegen.compile_module(
            kernel.name, text, entries, functions, constants, checked=parts, noinline=apart
        )
    )


_EXAMPLES = {"int": 0, "float": 0.0, "bool": False, "None": None}


def compile_noinline(kernel: Kernel, batch: tuple[Any, ...]) -> dict[FunctionType, Any]:
    """Compile a built-in kernel's `NOINLINE` functions. User kernels have none."""
    if not kernel.built_in:
        return {}
    arrays, params, state = batch[:3]
    known = {"s": state[0], "p": params[0], "d": kernel.Data(*arrays)}
    made: dict[FunctionType, Any] = {}
    for function in kernel.NOINLINE or ():
        code, name = function.__code__, function.__name__
        arguments = code.co_varnames[: code.co_argcount]
        types = function.__annotations__
        examples = tuple(known[a] if a in known else _EXAMPLES[types[a]] for a in arguments)
        call = ", ".join(arguments)
        made[function] = codegen.compile_module(
            f"{kernel.name}_{name}",
            f"def apart({call}):\n    return {name}({call})\n",
            {"apart": examples},
            {name: function},
            {},
            noinline=dict(made),
            returns=_EXAMPLES[types["return"]],
        )["apart"]
    return made


_OBSERVE = "observe(s, p, d, obs[e])"
_FINAL = "observe(s, p, d, final_obs[slot])"
_STEP = "r, terminal, cut = step(s, actions[e], p, d)"
# Placed after the step, whose last operations are still in flight: 5 % faster than before it.
# Prefetching state records too saved 11 % with 2,048 of them in the L2 cache.
_AHEAD = (
    "for k in range(0, RECORD_BYTES, 64):",
    "    prefetch_record(state, e + 2 * AHEAD, k)",
    "prefetch_record(episode_state, e + 2 * AHEAD, 0)",
    "if e + AHEAD < hi:",
    "    prefetch(state[e + AHEAD], params[episode_state[e + AHEAD].param_row], d)",
)
_METRICS = "copy_metrics(s, row)"
_OUT = "actions, obs, reward, terminated, truncated = out"
_FAULT = "if r - r != 0.0:  # NaN or infinite: kept for the error message"
_STATE = "s = state[e]"
_BATCH = "words, final_words = batch[8:10]"
_FEW = "arrays, params, state, episode_state = batch[:4]"
# The state before the step: a fault is replayed from it and explained.
_KEPT = ("for k in range(WORDS):", "    before[k] = words[e, k]")


def specialize(source: str, kernel: Kernel, spec: EnvSpec, checked: bool) -> str:
    """Return the loop's source for a kernel: number of players, action mask, optional hooks.

    `prefetch` is called for an environment while earlier ones are stepped. `finalize_episode` is
    called before an episode's metrics are recorded. A checked loop (user kernels) stores the
    current environment and its state before the step, and validates observations and masks.

    With several players, observations, rewards, actions and masks are rows ``[E, P, ...]``.
    """
    observers, players, masked = [_OBSERVE], spec.players, kernel.mask is not None
    if checked:
        source = _watch_steps(source)
    if kernel.prefetch is not None:
        source = _replace_line(source, _STEP, [_STEP, *_AHEAD])
    if kernel.finalize_episode is not None:
        source = _replace_line(source, _METRICS, ["finalize_episode(s, p, d)", _METRICS])
    if players > 1:
        observers = [f"observe(s, p, d, {i}, obs[e, {i}])" for i in range(players)]
        source = _for_players(source, players)
    if masked:
        observers += _masks(players)
        source = _replace_line(source, _OUT, [_OUT.replace(" = out", ", masks = out")])
        for name in ("start", "observe_all"):
            head = f"def {name}(lo: int, hi: int, batch: Any, obs: Any) -> None:"
            source = _replace_line(source, head, [head.replace(") ->", ", masks: Any) ->")])
    if checked:
        source, seen = _watch_numbers(source, players, masked)
        observers += seen
    return _replace_line(source, _OBSERVE, observers, places=3)


def _for_players(source: str, players: int) -> str:
    """Repeat every line about a reward or a return for each player."""
    every = range(players)
    swaps = {
        _FINAL: [f"observe(s, p, d, {i}, final_obs[slot, {i}])" for i in every],
        "reward[e] = 0.0": [f"reward[e, {i}] = 0.0" for i in every],
        "reward[e] = r": [f"reward[e, {i}] = r[{i}]" for i in every],
        "b.episode_return = 0.0": [f"b.episode_return[{i}] = 0.0" for i in every],
        "b.episode_return = b.episode_return + r": [
            f"b.episode_return[{i}] = b.episode_return[{i}] + r[{i}]" for i in every
        ],
        "row[RETURN] = b.episode_return": [
            f"row[RETURN + {i}] = b.episode_return[{i}]" for i in every
        ],
        _FAULT: ["if " + " or ".join(f"r[{i}] - r[{i}] != 0.0" for i in every) + ":"],
    }
    for line, lines in swaps.items():
        source = _replace_line(source, line, lines)
    return source


def _masks(players: int) -> list[str]:
    """Return the lines that write action masks after an observation."""
    if players == 1:
        return ["mask(s, p, d, masks[e])"]
    return [f"mask(s, p, d, {i}, masks[e, {i}])" for i in range(players)]


def _watch_steps(source: str) -> str:
    """Insert the lines that store the current environment and its state before the step."""
    source = _replace_line(source, _STATE, [_STATE, "counts[AT] = e"], places=3)
    source = _replace_line(source, _BATCH, [_BATCH, "before = batch[10]"])
    source = _replace_line(source, _FEW, [_FEW, "counts = batch[7]"], places=2)
    return _replace_line(source, _STEP, [*_KEPT, _STEP])


def _watch_numbers(source: str, players: int, masked: bool) -> tuple[str, list[str]]:
    """Insert validation of final observations; return also the lines that validate current ones."""
    # A held environment shows the end of its episode, where no action need be allowed.
    where = ["e"] if players == 1 else [f"e, {i}" for i in range(players)]
    wrong = [f"not numbers(obs[{place}])" for place in where]
    wrong += [f"not allows(masks[{place}])" for place in where] if masked else []
    fault = "    counts[FAULT] = -(e + 1)"
    checks = [
        f"if counts[FAULT] == 0 and episode_state[e].held == 0 and ({' or '.join(wrong)}):",
        fault,
    ]
    ends = ["slot"] if players == 1 else [f"slot, {i}" for i in range(players)]
    wrong = [f"not numbers(final_obs[{place}])" for place in ends]
    last = "final_index[slot, 1] = e"
    lines = [last, f"if counts[FAULT] == 0 and ({' or '.join(wrong)}):", fault]
    return _replace_line(source, last, lines), checks


def _replace_line(source: str, line: str, lines: list[str], places: int = 1) -> str:
    """Replace a whole line, keeping its indentation, in exactly `places` places."""
    pattern = re.compile(rf"^( *){re.escape(line)}$", re.MULTILINE)
    text, count = pattern.subn(lambda m: "\n".join(m[1] + new for new in lines), source)
    if count != places:
        raise AssertionError(f"the loop's template has `{line}` in {count} places, not {places}")
    return text
