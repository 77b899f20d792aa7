"""Model card: description, data, scores with intervals, and limits of a policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from slipstream.core.errors import ConfigError
from slipstream.core.safe_io import path_exists, read_text, resolve_folder
from slipstream.core.storage import checkpoint
from slipstream.core.storage.atomic_io import write_text
from slipstream.core.text import printable
from slipstream.report.inputs import RunEvaluation
from slipstream.report.number_format import MeanWithError, format_interval
from slipstream.report.page import Page
from slipstream.report.run_evaluation import evaluate_run
from slipstream.report.run_page import build_page
from slipstream.report.study.study_page import study_page
from slipstream.report.study.study_view import read_view
from slipstream.studies.record.folder import StudyFolder
from slipstream.training.evaluation_result import mean_interval
from slipstream.training.runs.policies import DeployedPolicy, forced_gate_warnings, policy_metadata
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import RunConfig

CARD, README = "card.md", "README.md"
# Entries of other sections, and entries private to this machine.
_ELSEWHERE = ("policy", "command", "started", "commit", "id", "chosen by", "test", "training data")


class CardSubject(NamedTuple):
    """Subject of a model card.

    Attributes:
        folder: folder of the run or study.
        policy: exported policy with its manifest.
        config: its training config.
        page: report of the run, or page of the study.
        market: True if it was trained on prices.
        scores: scores in addition to the page's figures.
        notes, limits: sentences.
        provenance: label and text.
    """

    folder: Path
    policy: tuple[checkpoint.Tensors, Mapping[str, Any]]
    config: RunConfig
    page: Page
    market: bool
    scores: Mapping[str, str]
    notes: Sequence[str]
    limits: Sequence[str]
    provenance: Mapping[str, str]


def write_model_card(source: Run | DeployedPolicy, out: Path | None, licence: str | None) -> Path:
    """Write the model card of a policy; with `out`, also export the policy.

    Reading a run's test split like its report, or a hold-out that the study opened,
    is not counted as a further access.

    Args:
        source: a run (its best policy), or the folder of a study's deployed policy.
        out: folder of the policy and its README.md; without it, card.md is written into the
            directory of the run or study.
        licence: licence of the data; default: the licence file beside the prices.

    Returns:
        Path of the written file.

    Raises:
        ConfigError: `out` exists and is not a policy.
    """
    if out is not None and path_exists(out) and not path_exists(out / checkpoint.MANIFEST):
        raise ConfigError(
            f"--out {out} exists and is not a policy. Give a new folder, or the folder of a policy."
        )
    subject = _subject_from_run(source) if isinstance(source, Run) else _subject_from_study(source)
    text = render_card(subject, licence or find_licence(subject.config, subject.market))
    if out is None:
        write_text(subject.folder / CARD, text)
        return subject.folder / CARD
    checkpoint.save(out, *subject.policy)
    write_text(out / README, text)
    return out / README


def render_card(subject: CardSubject, licence: str) -> str:
    """Render the model card as Markdown.

    Args:
        subject: policy that the model card describes.
        licence: licence of the data.
    """
    facts, page = policy_metadata(subject.folder), subject.page
    data = {name: text for name, text in facts.items() if name.endswith(" bars")}
    if "training data" in facts:
        data["sha256"] = facts["training data"]
    about = {k: v for k, v in facts.items() if k not in _ELSEWHERE and k not in data}
    figures = {f.label: f"{f.value} ({f.note})" if f.note else f.value for f in page.figures}
    lines = [
        *(f"# {subject.config.short_name}", f"**{_text(page.headline)}**"),
        "A policy is data, not code: `slipstream.load_policy(FOLDER)` runs nothing of this folder, "
        "and `slipstream evaluate FOLDER` measures it again.",
        *("## Policy", _table(about)),
        *("## Data", _table({**data, "licence of the data": licence})),
        *(
            "## Scores",
            _table({**figures, **subject.scores}),
            _list([*page.sentences, *subject.notes]),
        ),
        *("## Limitations", _list([*page.warnings, *subject.limits])),
        *("## Provenance", _table({**subject.provenance, **_command(subject.provenance)})),
    ]
    return "\n\n".join(filter(None, lines)) + "\n"


def _subject_from_run(run: Run) -> CardSubject:
    evaluation = evaluate_run(run, count=False)
    scores = {} if evaluation.market is not None else dict([_mean_interval(evaluation)])
    market, page = evaluation.market is not None, build_page(evaluation)
    details = (evaluation.notes, [*_limits(run, evaluation), *page.limits], evaluation.provenance)
    return CardSubject(
        run.path,
        _exported_policy(run, evaluation),
        run.config,
        page,
        market,
        {**scores, **page.scores},
        *details,
    )


def _subject_from_study(deployed: DeployedPolicy) -> CardSubject:
    folder, config = StudyFolder(deployed.path.parent), deployed.config
    view, beyond = read_view(folder), [_other_environment_limit(config)]
    if view.has_prices:
        beyond.append(_LATER)
    notes = (*forced_gate_warnings(deployed.metadata), *view.notes)
    policy, page = checkpoint.load(deployed.path), study_page(view)
    details = (notes, beyond, view.provenance)
    return CardSubject(folder.path, policy, config, page, view.has_prices, {}, *details)


def find_licence(config: RunConfig, market: bool) -> str:
    """Return the first lines of a file called LICENSE or LICENCE beside the prices."""
    if not market:
        return "none needed: the environment generates its data"
    data = config.env_settings.get("data") or {}
    folder = resolve_folder(str(data.get("folder", "")))
    for path in sorted(folder.glob("LICEN[CS]E*")):
        try:
            lines = [line.strip() for line in read_text(path, "The licence").splitlines()]
        except ConfigError:  # not a text file
            continue
        lines = [line for line in lines if line][:2]
        if lines:
            return f"{', '.join(lines)} ({path.name} beside the prices)"
    return "unknown: clarify it before you publish the policy, and state it with `--licence`"


def _mean_interval(evaluation: RunEvaluation) -> tuple[str, str]:
    """Return the mean return of the displayed member with its 95 % interval."""
    returns = np.array(
        [track.episode_return for track in evaluation.tracks[evaluation.holdout][evaluation.member]]
    )
    measured = MeanWithError.from_values(returns)
    if not measured.error:
        return "95 % interval of the mean return", "none: all episodes returned the same"
    bounds = format_interval(mean_interval(returns), measured.digits)
    text = f"{bounds} ({len(returns)} episodes)"
    return "95 % interval of the mean return", text


_LATER = "Later bars than those above, and other trading costs, were not tested."


def _other_environment_limit(config: RunConfig) -> str:
    return f"Environments other than `{config.env_name}` with the settings above were not tested."


def _limits(run: Run, evaluation: RunEvaluation) -> Iterator[str]:
    """Yield the limitations of the model card's figures."""
    yield _other_environment_limit(run.config)
    if len(run.best.present) == 1:
        yield "Only one seed was trained; others may learn less."
    else:
        yield (
            f"This is the best of {len(run.best.present)} {evaluation.member_noun}, chosen on "
            "validation; repeated training may score less."
        )
    if evaluation.market is not None:
        yield _LATER


def _command(provenance: Mapping[str, str]) -> dict[str, str]:
    """Return the command without the program's folder, which is private to this machine."""
    program, _, words = provenance.get("Command", "").partition(" ")
    return {"Command": f"{Path(program).name} {words}"} if words else {}


def _exported_policy(
    run: Run, evaluation: RunEvaluation
) -> tuple[checkpoint.Tensors, Mapping[str, Any]]:
    """Return the best policy with its training config and its scores."""
    tensors, manifest = run.best.load(run.best.highest)
    result, environment = run.result or {}, run.provenance.get("environment") or {}
    member = manifest.get("member")
    member_result: Mapping[str, Any] = next(
        (entry for entry in result.get("members", ()) if entry.get("member") == member), {}
    )
    tracks = evaluation.tracks[evaluation.holdout][evaluation.member]
    facts: dict[str, Any] = {
        "run": run.config.as_mapping(),
        "environment": environment,
        "test": {
            "score": member_result.get("test_score"),
            "error": member_result.get("test_error"),
            "score_is": result.get("score_is"),
            "test_is": result.get("test_is"),
            "episodes": len(tracks),
        },
    }
    return tensors, {**manifest, **facts}


def _text(text: str) -> str:
    """Return text as one line of Markdown without HTML."""
    return printable(text).replace("&", "&amp;").replace("<", "&lt;")


def _table(rows: Mapping[str, str]) -> str:
    cells = [(_text(name), _text(text).replace("|", "\\|")) for name, text in rows.items()]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in cells)])


def _list(sentences: Iterator[str] | list[str] | tuple[str, ...]) -> str:
    return "\n".join(f"- {_text(sentence)}" for sentence in dict.fromkeys(sentences))
