"""A model card: what a policy is, on which data, its scores with intervals, what was not shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from slipstream.core.errors import ConfigError
from slipstream.core.reader import is_there, read_text
from slipstream.core.text import printable
from slipstream.files import checkpoint
from slipstream.files.files import write_text
from slipstream.market.reading.source import resolve_folder
from slipstream.report.game.outcomes import whole_games
from slipstream.report.inputs import RunEvaluation
from slipstream.report.numbers import Measured, interval
from slipstream.report.page import Page
from slipstream.report.run.evaluation import evaluate_run
from slipstream.report.run.report import build_page
from slipstream.runs.policy_facts import policy_facts
from slipstream.runs.run import Run
from slipstream.settings.config import RunConfig

CARD, README = "card.md", "README.md"
# Facts that another section tells, or that are of the writer's machine.
_ELSEWHERE = ("policy", "command", "started", "commit", "id", "chosen by", "test", "training data")


def write_card(run: Run, out: Path | None = None, licence: str | None = None) -> Path:
    """Writes the card of a run's best policy; with `out`, the policy, too, to be handed on.

    The test split is read as the run's report reads it: this is no further look.

    Args:
        run: with a policy.
        out: folder of the policy and its card, `README.md`; without it the card is `card.md` in
            the run's directory.
        licence: of the data; what lies beside the prices unless given.

    Returns:
        Path of the card.

    Raises:
        ConfigError: `out` is there already, and is no policy.
    """
    if out is not None and is_there(out) and not is_there(out / checkpoint.MANIFEST):
        raise ConfigError(
            f"--out {out} is there already: name a folder that is not, or a policy's."
        )
    found = evaluate_run(run, count=False)
    text = card(run, found, build_page(found), licence or licence_of(run.config, found))
    if out is None:
        write_text(run.path / CARD, text)
        return run.path / CARD
    _hand_on(run, found, out)
    write_text(out / README, text)
    return out / README


def card(run: Run, found: RunEvaluation, page: Page, licence: str) -> str:
    """The card as Markdown.

    Args:
        run: whose best policy it is; found: evaluated; page: its report.
        licence: of the data, in words.
    """
    facts = policy_facts(run.path)
    data = {name: text for name, text in facts.items() if name.endswith(" bars")}
    if "training data" in facts:
        data["sha256"] = facts["training data"]
    own = {k: v for k, v in facts.items() if k not in _ELSEWHERE and k not in data}
    scores = {
        one.label: f"{one.value} ({one.note})" if one.note else one.value for one in page.figures
    }
    if found.market is None:
        scores |= dict([_mean_interval(found)])
    if found.game is not None:
        scores |= dict(map(whole_games, found.game.played))
    lines = [
        *(f"# {run.config.short_name}", f"**{_text(page.headline)}**"),
        "A policy is data, not code: `slipstream.load_policy(FOLDER)` runs nothing of this folder, "
        "and `slipstream evaluate FOLDER` measures it again.",
        *("## What it is", _table(own)),
        *("## Data", _table({**data, "licence of the data": licence})),
        *("## Scores", _table(scores), _list([*page.sentences, *found.notes])),
        *("## What was not shown", _list([*page.warnings, *_limits(run, found)])),
        *("## Where it comes from", _table({**found.provenance, **_command(found)})),
    ]
    return "\n\n".join(filter(None, lines)) + "\n"


def licence_of(config: RunConfig, found: RunEvaluation) -> str:
    """What a file called LICENSE or LICENCE beside the prices says first, in words."""
    if found.market is None:
        return "none needed: the environment makes all that it shows"
    data = config.env_settings.get("data") or {}
    folder = resolve_folder(str(data.get("folder", "")))
    for path in sorted(folder.glob("LICEN[CS]E*")):
        try:
            lines = [line.strip() for line in read_text(path, "The licence").splitlines()]
        except ConfigError:  # it is no text
            continue
        said = [line for line in lines if line][:2]
        if said:
            return f"{', '.join(said)} ({path.name} beside the prices)"
    return "not stated: ask whose prices they are before you hand this on (`--licence` states it)"


def _mean_interval(found: RunEvaluation) -> tuple[str, str]:
    """The mean return of the shown member with its 95 % interval, of independent episodes."""
    returns = np.array([track.ret for track in found.tracks[found.holdout][found.member]])
    measured = Measured.of(returns)
    if not measured.error:
        return "95 % interval of the mean return", "none: all episodes returned the same"
    half = float(stats.t.ppf(0.975, len(returns) - 1)) * measured.error  # Student's
    bounds = (measured.mean - half, measured.mean + half)
    text = f"{interval(bounds, measured.digits)} ({len(returns)} episodes)"
    return "95 % interval of the mean return", text


def _limits(run: Run, found: RunEvaluation) -> Iterator[str]:
    """What no figure of the card is about."""
    yield f"How it does in anything but `{run.config.env_name}` with the settings above."
    if len(run.best.present) == 1:
        yield "Whether other seeds learn the same: one was trained."
    else:
        yield (
            f"That training does as well again: this is the best of {len(run.best.present)} "
            f"{found.kind}, chosen on validation."
        )
    if found.market is not None:
        yield "How it does on bars after those above, and with a broker whose costs are others."
    elif found.outcomes:
        names = " and ".join(one.opponent for one in found.outcomes)
        yield f"How it does against anybody but {names}."


def _command(found: RunEvaluation) -> dict[str, str]:
    """The command without the folder of the program: the card leaves this machine."""
    program, _, words = found.provenance.get("Command", "").partition(" ")
    return {"Command": f"{Path(program).name} {words}"} if words else {}


def _hand_on(run: Run, found: RunEvaluation, out: Path) -> None:
    """Writes the best policy with the config that it was trained under and what it scored."""
    tensors, manifest = run.best.load(run.best.highest)
    result, environment = run.result or {}, run.provenance.get("environment") or {}
    member = manifest.get("member")
    own: Mapping[str, Any] = next(
        (one for one in result.get("members", ()) if one.get("member") == member), {}
    )
    tracks = found.tracks[found.holdout][found.member]
    facts: dict[str, Any] = {
        "run": run.config.as_mapping(),
        "environment": environment,
        "test": {
            "score": own.get("test_score"),
            "error": own.get("test_error"),
            "score_is": result.get("score_is"),
            "test_is": result.get("test_is"),
            "episodes": len(tracks),
        },
    }
    checkpoint.save(out, tensors, {**manifest, **facts})


def _text(text: str) -> str:
    """Somebody's text as one line of Markdown that holds no HTML."""
    return printable(text).replace("&", "&amp;").replace("<", "&lt;")


def _table(rows: Mapping[str, str]) -> str:
    cells = [(_text(name), _text(text).replace("|", "\\|")) for name, text in rows.items()]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in cells)])


def _list(sentences: Iterator[str] | list[str] | tuple[str, ...]) -> str:
    return "\n".join(f"- {_text(sentence)}" for sentence in dict.fromkeys(sentences))
