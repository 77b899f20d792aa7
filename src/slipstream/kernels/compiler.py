"""One kernel's batch loop, interpreted or compiled."""

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
    """The entry points of a batch loop; see `kernels/loop.py` for their arguments."""

    advance: Any
    start: Any
    look: Any


def checked_parts(kernel: Kernel) -> frozenset[str]:
    """Functions whose indices are compared with the sizes of arrays: all of a user's own kernel.

    Unchecked, a write beyond an array's end corrupts whatever lies there. Built-in kernels are run
    with checks by the tests instead. What it costs: docs/performance.md, "Checks".
    """
    if kernel.built_in:
        return frozenset()
    return frozenset({"reset", "step", "observe", "mask", "prefetch", "finalize_episode"})


def loop_text(kernel: Kernel, spec: EnvSpec, checked: bool = False) -> str:
    """Source of one kernel's batch loop: the template and functions that fit its records.

    Args:
        checked: with lines that find out which copy went wrong.
    """
    lines = [*make_data_text(kernel), "", "", "def clear(s):"]
    for name in kernel.STATE.names or ():
        lines += _clear_field(name, kernel.STATE[name])
    lines += ["", "", "def copy_metrics(s, row):"]
    first = loop.RETURN + spec.players
    copies = [f"    row[{first + i}] = s.{metric.name}" for i, metric in enumerate(spec.metrics)]
    lines += copies or ["    pass"]
    values = {name: getattr(loop, name) for name in loop.CONSTANTS}
    values["RECORD_BYTES"] = min(loop.RECORD_BYTES, kernel.STATE.itemsize)
    values["WORDS"] = kernel.STATE.itemsize // 8
    constants = [f"{name} = {value}" for name, value in values.items()]
    head = "from typing import Any\n\nimport numpy as np"
    source = codegen.source_of((loop.begin, loop.advance, loop.start, loop.look))
    template = specialize(source, kernel, spec, checked)
    if checked:
        lines += ["", "", *_numbers_text(spec), "", "", *allows_text(spec)]
    return "\n\n\n".join([head, "\n".join(constants), "\n".join(lines), template]) + "\n"


def make_data_text(kernel: Kernel) -> list[str]:
    """`make_data(arrays)`: the kernel's Data of a tuple of arrays."""
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


def _numbers_text(spec: EnvSpec) -> list[str]:
    """`numbers(row)`: whether an observation holds neither NaN nor infinity."""
    if spec.observation_dtype.kind != "f":
        return ["def numbers(row):", "    return True"]
    names = [f"i{axis}" for axis in range(len(spec.observation_shape))]
    lines = [
        f"{'    ' * (axis + 1)}for i{axis} in range({size}):"
        for axis, size in enumerate(spec.observation_shape)
    ]
    inner = "    " * (len(names) + 1)
    place = f"row[{', '.join(names)}]"
    # NaN and infinity less themselves are NaN. `&` looks at all of them at once.
    lines += [f"{inner}good = good & ({place} - {place} == 0.0)"]
    return ["def numbers(row):", "    good = True", *lines, "    return good"]


def allows_text(spec: EnvSpec) -> list[str]:
    """`allows(row)`: whether a mask leaves a choice in every component."""
    lines = ["def allows(row):"]
    first = 0
    for size in spec.components:
        lines += ["    some = False", f"    for i in range({first}, {first + size}):"]
        lines += ["        some = some or row[i]", "    if not some:", "        return False"]
        first += size
    return [*lines, "    return True"]


def bindings(kernel: Kernel) -> dict[str, FunctionType]:
    """The plain functions that the loop's text calls."""
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


def entry_arguments(batch: tuple[Any, ...], out: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    """Example arguments of the loop's entry points; their types make the signatures."""
    shown = (out[1], *out[5:])
    return {
        "advance": (0, 0, 0, 0, batch, out),
        "start": (0, 0, batch, *shown),
        "look": (0, 0, batch, *shown),
    }


def interpreted_loop(kernel: Kernel, spec: EnvSpec) -> Loop:
    """The loop as plain Python: slow, and what every other backend must equal bit for bit."""
    kernel = kernel._replace(prefetch=None)  # nothing to ask for
    text = loop_text(kernel, spec, bool(checked_parts(kernel)))
    module = codegen.interpret(text, bindings(kernel), {"Data": kernel.Data})
    return Loop(module.advance, module.start, module.look)


def compiled_loop(
    kernel: Kernel, spec: EnvSpec, batch: tuple[Any, ...], out: tuple[Any, ...]
) -> Loop:
    """The loop as machine code for arrays of the types of `batch` and `out`.

    Args:
        out: (actions, obs, reward, terminated, truncated), and masks where the kernel has `mask`.
    """
    entries = entry_arguments(batch, out)
    parts = checked_parts(kernel)
    text = loop_text(kernel, spec, bool(parts))
    constants, functions = {"Data": kernel.Data}, bindings(kernel)
    apart = _compile_apart(kernel, batch)
    return Loop(
        **codegen.compile_module(
            kernel.name, text, entries, functions, constants, checked=parts, apart=apart
        )
    )


_OF_TYPE = {"int": 0, "float": 0.0, "bool": False, "None": None}


def _compile_apart(kernel: Kernel, batch: tuple[Any, ...]) -> dict[FunctionType, Any]:
    """Compiled forms of a built-in kernel's `NOINLINE`; a user's own name means nothing."""
    if not kernel.built_in:
        return {}
    arrays, params, state = batch[:3]
    known = {"s": state[0], "p": params[0], "d": kernel.Data(*arrays)}
    made: dict[FunctionType, Any] = {}
    for function in kernel.NOINLINE or ():
        code, name = function.__code__, function.__name__
        arguments = code.co_varnames[: code.co_argcount]
        types = function.__annotations__
        shown = tuple(known[a] if a in known else _OF_TYPE[types[a]] for a in arguments)
        call = ", ".join(arguments)
        made[function] = codegen.compile_module(
            f"{kernel.name}_{name}",
            f"def apart({call}):\n    return {name}({call})\n",
            {"apart": shown},
            {name: function},
            {},
            apart=dict(made),
            returns=_OF_TYPE[types["return"]],
        )["apart"]
    return made


_OBSERVE = "observe(s, p, d, obs[e])"
_FINAL = "observe(s, p, d, final_obs[slot])"
_STEP = "r, terminal, cut = step(s, actions[e], p, d)"
# After the step, whose last sums the processor still waits for: 5 % faster than before it. Records
# are asked for as well: with 2,048 of them in the second cache it saved 11 %.
_AHEAD = (
    "for k in range(0, RECORD_BYTES, 64):",
    "    prefetch_record(state, e + 2 * AHEAD, k)",
    "prefetch_record(book, e + 2 * AHEAD, 0)",
    "if e + AHEAD < hi:",
    "    prefetch(state[e + AHEAD], params[book[e + AHEAD].which], d)",
)
_METRICS = "copy_metrics(s, row)"
_OUT = "actions, obs, reward, terminated, truncated = out"
_FAULT = "if r - r != 0.0:  # NaN or infinite: left as it is, to be named"
_STATE = "s = state[e]"
_BATCH = "words, final_words = batch[8:10]"
_FEW = "arrays, params, state, book = batch[:4]"
# The record before the step: with it, what went wrong can be run again and named.
_KEPT = ("for k in range(WORDS):", "    before[k] = words[e, k]")


def specialize(source: str, kernel: Kernel, spec: EnvSpec, checked: bool) -> str:
    """The loop's text for a kernel, of as many players as its spec says, with or without `mask`.

    `prefetch` is called for an environment while earlier ones are stepped. `finalize_episode` is
    called before an episode's metrics are recorded.
    A checked one is a user's own: the loop notes the copy at hand and its record before the step,
    and looks at what was observed and allowed.

    Observations, rewards, actions and masks of several players are rows ``[E, P, ...]``.
    """
    shown, players, masked = [_OBSERVE], spec.players, kernel.mask is not None
    if checked:
        source = _watch_steps(source)
    if kernel.prefetch is not None:
        source = _swap(source, _STEP, [_STEP, *_AHEAD])
    if kernel.finalize_episode is not None:
        source = _swap(source, _METRICS, ["finalize_episode(s, p, d)", _METRICS])
    if players > 1:
        shown = [f"observe(s, p, d, {i}, obs[e, {i}])" for i in range(players)]
        source = _for_players(source, players)
    if masked:
        shown += _masks(players)
        source = _swap(source, _OUT, [_OUT.replace(" = out", ", masks = out")])
        for name in ("start", "look"):
            head = f"def {name}(lo: int, hi: int, batch: Any, obs: Any) -> None:"
            source = _swap(source, head, [head.replace(") ->", ", masks: Any) ->")])
    if checked:
        source, seen = _watch_numbers(source, players, masked)
        shown += seen
    return _swap(source, _OBSERVE, shown, places=3)


def _for_players(source: str, players: int) -> str:
    """Every line about a reward or a return once for each player."""
    every = range(players)
    swaps = {
        _FINAL: [f"observe(s, p, d, {i}, final_obs[slot, {i}])" for i in every],
        "reward[e] = 0.0": [f"reward[e, {i}] = 0.0" for i in every],
        "reward[e] = r": [f"reward[e, {i}] = r[{i}]" for i in every],
        "b.ret = 0.0": [f"b.ret[{i}] = 0.0" for i in every],
        "b.ret = b.ret + r": [f"b.ret[{i}] = b.ret[{i}] + r[{i}]" for i in every],
        "row[RETURN] = b.ret": [f"row[RETURN + {i}] = b.ret[{i}]" for i in every],
        _FAULT: ["if " + " or ".join(f"r[{i}] - r[{i}] != 0.0" for i in every) + ":"],
    }
    for line, lines in swaps.items():
        source = _swap(source, line, lines)
    return source


def _masks(players: int) -> list[str]:
    """What is allowed next, beside what is observed."""
    if players == 1:
        return ["mask(s, p, d, masks[e])"]
    return [f"mask(s, p, d, {i}, masks[e, {i}])" for i in range(players)]


def _watch_steps(source: str) -> str:
    """The copy at hand and its record before the step are noted."""
    source = _swap(source, _STATE, [_STATE, "counts[AT] = e"], places=3)
    source = _swap(source, _BATCH, [_BATCH, "before = batch[10]"])
    source = _swap(source, _FEW, [_FEW, "counts = batch[7]"], places=2)
    return _swap(source, _STEP, [*_KEPT, _STEP])


def _watch_numbers(source: str, players: int, masked: bool) -> tuple[str, list[str]]:
    """Final observations are looked at; and the lines that look at what is shown."""
    # A copy that waits was observed where its episode ended: nothing need be allowed there.
    where = ["e"] if players == 1 else [f"e, {i}" for i in range(players)]
    wrong = [f"not numbers(obs[{place}])" for place in where]
    wrong += [f"not allows(masks[{place}])" for place in where] if masked else []
    fault = "    counts[FAULT] = -(e + 1)"
    shown = [f"if counts[FAULT] == 0 and book[e].held == 0 and ({' or '.join(wrong)}):", fault]
    ends = ["slot"] if players == 1 else [f"slot, {i}" for i in range(players)]
    wrong = [f"not numbers(final_obs[{place}])" for place in ends]
    last = "final_index[slot, 1] = e"
    lines = [last, f"if counts[FAULT] == 0 and ({' or '.join(wrong)}):", fault]
    return _swap(source, last, lines), shown


def _swap(source: str, line: str, lines: list[str], places: int = 1) -> str:
    """Replaces a whole line at its own indentation, in exactly so many places."""
    pattern = re.compile(rf"^( *){re.escape(line)}$", re.MULTILINE)
    text, found = pattern.subn(lambda m: "\n".join(m[1] + new for new in lines), source)
    if found != places:
        raise AssertionError(f"the loop's template has `{line}` in {found} places, not {places}")
    return text
