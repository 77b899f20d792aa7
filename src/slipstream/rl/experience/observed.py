"""Which fields of a kernel's record its observations are made of, found in its source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import FunctionType
from typing import Any

from slipstream.kernels.kernel import Kernel


def observed_fields(kernel: Kernel) -> tuple[str, ...] | None:
    """STATE fields that `observe` and `mask`, and the helpers they call, may read.

    A record with these fields shows the same observation as the whole one. Where the source uses
    the record in a way that cannot be followed, such as in a tuple, the answer is None: all fields
    may matter.

    Returns:
        Names in the order of STATE.
    """
    names = kernel.STATE.names or ()
    found: set[str] = set()
    functions = [one for one in (kernel.observe, kernel.mask) if one is not None]
    if not all(_follow(one, frozenset({0}), found, set()) for one in functions):
        return None
    return tuple(name for name in names if name in found)


def _follow(
    function: Callable[..., Any],
    records: frozenset[int],
    found: set[str],
    seen: set[tuple[Any, frozenset[int]]],
) -> bool:
    """Adds the fields that a function reads of the arguments that are the record.

    Args:
        function: plain; records: places of these arguments.
        found: names, added to; seen: calls that were looked at, added to.

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
    own = {arguments[place] for place in records if place < len(arguments)}
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Name) and node.id in own):
            continue
        parent = parents[node]
        if isinstance(parent, ast.Attribute) and isinstance(parent.ctx, ast.Load):
            found.add(parent.attr)
        elif not (
            isinstance(parent, ast.Call) and _follow_call(parent, function, own, found, seen)
        ):
            return False
    return True


def _follow_call(
    call: ast.Call,
    caller: FunctionType,
    own: set[str],
    found: set[str],
    seen: set[tuple[Any, frozenset[int]]],
) -> bool:
    """A call that is handed the record."""
    helper = caller.__globals__.get(call.func.id) if isinstance(call.func, ast.Name) else None
    if not isinstance(helper, FunctionType):
        return False
    arguments = helper.__code__.co_varnames[: helper.__code__.co_argcount]
    places = {i for i, value in enumerate(call.args) if _is(value, own)}
    named = {word.arg for word in call.keywords if _is(word.value, own)}
    if not named <= set(arguments):
        return False
    places |= {arguments.index(name) for name in named if name is not None}
    return _follow(helper, frozenset(places), found, seen)


def _is(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names
