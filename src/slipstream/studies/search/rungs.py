"""When a trial stops early: a rung that predicts, and the rule at it (docs/rules.md, section 12).

The rule was chosen by replaying several over recorded scores; docs/rules.md has the comparison. No
p-value of folds is computed: two folds share a tested group in 12 of 15 pairs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Floats = NDArray[np.float64]

LEAST_CORRELATION = 0.5
RECENT = 48  # trials, three times those in flight
FEWEST = 3  # finished trials; two always correlate perfectly

DISARMED = "rung disarmed"
LOWER_HALF = f"in the lower half of the last {RECENT} trials that reached this rung"
BEHIND = "behind the best trial in every fold at equal steps"


def rank_correlation(first: Floats, second: Floats) -> float | None:
    """Spearman's, mid ranks for ties; None with fewer than 3 pairs or where one is constant."""
    fine = np.isfinite(first) & np.isfinite(second)
    if fine.sum() < FEWEST:
        return None
    a, b = rankdata(first[fine]), rankdata(second[fine])
    if np.ptp(a) == 0.0 or np.ptp(b) == 0.0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def armed(
    rung_scores: Floats, final_scores: Floats, least: float = LEAST_CORRELATION
) -> tuple[bool, float | None]:
    """Whether a rung may stop trials: its scores rank finished trials as their ends did.

    Args:
        rung_scores, final_scores: of the trials that have finished by now, in one order.
        least: rank correlation from which on the rung is armed.

    Returns:
        Whether it is, and the correlation (None: not known, and then it is disarmed).
    """
    rho = rank_correlation(rung_scores, final_scores)
    return rho is not None and rho >= least, rho


def ahead(score: float, others: Floats) -> float:
    """Share of the others that are ahead; equal ones count half, without others nobody is."""
    known = others[np.isfinite(others)]
    if not len(known):
        return 0.0
    return float(np.mean(known > score) + 0.5 * np.mean(known == score))


def stops(score: float, earlier: Floats, folds: Floats, best: Floats | None) -> str:
    """Why a trial stops at an armed rung; empty where it goes on.

    Args:
        score: the trial's at this rung.
        earlier: scores of those that reached this rung earlier in virtual time, in that order.
        folds: the trial's fold scores at this rung.
        best: fold scores of the best finished trial at this rung; None where there is none.
    """
    if ahead(score, earlier[-RECENT:]) > 0.5:  # those that came last are what the sampler is by now
        return LOWER_HALF
    if best is not None and len(best) and bool(np.all(folds < best)):
        return BEHIND
    return ""
