"""Lines of the batch loop that differ where several players act, actions are masked, or
a user's own kernel is watched.

They are put into the loop's text instead of being asked for at run time, so that an environment of
one player without a mask pays nothing for them.
"""

from __future__ import annotations

import re

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
    "    ahead(state[e + AHEAD], params[book[e + AHEAD].which], d)",
)
_METRICS = "copy_metrics(s, row)"
_OUT = "actions, obs, reward, terminated, truncated = out"
_FAULT = "if r - r != 0.0:  # NaN or infinite: left as it is, to be named"
_STATE = "s = state[e]"
_BATCH = "words, final_words = batch[8:10]"
_FEW = "arrays, params, state, book = batch[:4]"
# The record before the step: with it, what went wrong can be run again and named.
_KEPT = ("for k in range(WORDS):", "    before[k] = words[e, k]")


def vary(
    source: str,
    players: int,
    masked: bool,
    ahead: bool = False,
    concludes: bool = False,
    checked: bool = False,
) -> str:
    """The loop's text for a kernel of `players` players, with or without `mask`.

    A kernel with `ahead` asks for the memory of a copy while those before it are stepped. One with
    `conclude` finishes an episode's metrics before they are recorded.
    A checked one is a user's own: the loop notes the copy at hand and its record before the step,
    and looks at what was observed and allowed.

    Observations, rewards, actions and masks of several players are rows ``[E, P, ...]``.
    """
    shown = [_OBSERVE]
    if checked:
        source = _watch_steps(source)
    if ahead:
        source = _swap(source, _STEP, [_STEP, *_AHEAD])
    if concludes:
        source = _swap(source, _METRICS, ["conclude(s, p, d)", _METRICS])
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
    return _swap(source, _OBSERVE, shown)


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
    source = _swap(source, _STATE, [_STATE, "counts[AT] = e"])
    source = _swap(source, _BATCH, [_BATCH, "before = batch[10]"])
    source = _swap(source, _FEW, [_FEW, "counts = batch[7]"])
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


def _swap(source: str, line: str, lines: list[str]) -> str:
    """Replaces a whole line wherever it stands, at its own indentation."""
    pattern = re.compile(rf"^( *){re.escape(line)}$", re.MULTILINE)
    text, found = pattern.subn(lambda m: "\n".join(m[1] + new for new in lines), source)
    if not found:
        raise AssertionError(f"the loop's template has no line `{line}`")
    return text
