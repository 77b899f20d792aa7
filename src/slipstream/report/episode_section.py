"""What training episodes were like as training went on: the part of a page that shows it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.report import learning_figures
from slipstream.report.inputs import Curve
from slipstream.report.page import Section, picture

_MOST = 16  # panels; the tables have all
_LISTED = 20  # names in a sentence


def episode_sections(curves: Sequence[Curve]) -> list[Section]:
    """One section, or none where nothing was measured twice."""
    known = [curve for curve in curves if _points(curve) > 1]
    moving = [curve for curve in known if _moves(curve)]
    if not moving:
        return []
    sentences = [
        "Episodes of training, with actions that were drawn and with its costs of exploring: how "
        "they change says what is learned, not how good the chosen policy is."
    ]
    still = [f"{c.name} {float(np.nanmin(c.score)):.4g}" for c in known if not _moves(c)]
    if still:
        sentences.append(f"Always the same: {_listed(still)}.")
    left = [curve.name for curve in moving[_MOST:]]
    if left:
        sentences.append(f"Not drawn, in metrics.csv and TensorBoard: {_listed(left)}.")
    drawn = learning_figures.episodes(moving[:_MOST])
    words = "Length and metrics of training episodes over steps"
    return [Section("Training episodes", sentences, (), [picture("episodes", words, drawn)])]


def _moves(curve: Curve) -> bool:
    return bool(np.nanmin(curve.score) < np.nanmax(curve.score))


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more:,} more" if more > 0 else "")


def _points(curve: Curve) -> int:
    """Moments at which any member has a value."""
    return int((~np.isnan(curve.score)).any(axis=1).sum())
