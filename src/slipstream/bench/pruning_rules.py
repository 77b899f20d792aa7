"""Compares rules of pruning over recorded studies, and records planted ones.

    python -m slipstream.bench.pruning_rules record FOLDER --strength 8 --seed 0
    python -m slipstream.bench.pruning_rules compare FOLDER... --json results/pruning-rules.json

Any study that was run with ``study.pruning: {enabled: false, record: true}`` can be compared. The
rule in force is `slipstream.studies.search.rungs.CHOSEN`; docs/rules.md says why.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.bench import machine
from slipstream.bench.ours.study import run_study
from slipstream.bench.ours.study_replay import replay
from slipstream.bench.study_settings import PLANTED_FEATURES, Size, study_config
from slipstream.bench.suite import write_result
from slipstream.market.planted_crypto import BASIS_POINT, PlantedCrypto, write_planted_crypto
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.reader import StudyReader
from slipstream.studies.search.plan import steps_of
from slipstream.studies.search.rungs import Reached, Rule, ahead

RECORDED = (1 / 9, 1 / 3, 2 / 3)  # shares of the budget at which a recorded study is scored
DEFAULT = (1 / 3, 2 / 3)
BARS = 40_000
SIZE = Size(trials=160, steps=12 * 12 * 256, confirmed=1, seeds=1, final_seeds=1)


def behind(share: float, window: int | None = None, finished: bool = False) -> Rule:
    """Stops whoever has more than a share of the others ahead.

    Args:
        share: of the others; 1/2 stops the lower half, 1/3 all but the upper third.
        window: only the last so many that reached the rung; None: all of them.
        finished: only those that have finished by now.
    """

    def rule(score: float, reached: Reached) -> str:
        others = reached.scores[reached.finished] if finished else reached.scores
        if window is not None:
            others = others[-window:]
        return "behind" if ahead(score, others) > share else ""

    return rule


RULES: Mapping[str, Rule] = {
    "lower half of all earlier": behind(1 / 2),
    "lower half of the last 16": behind(1 / 2, 16),
    "lower half of the last 32": behind(1 / 2, 32),
    "lower half of the last 48": behind(1 / 2, 48),
    "lower half of the last 64": behind(1 / 2, 64),
    "lower half of those that finished (Optuna's median)": behind(1 / 2, finished=True),
    "all but the upper third (successive halving, 3)": behind(1 / 3),
    "all but the upper quarter (successive halving, 4)": behind(1 / 4),
    "all but the upper third of the last 32": behind(1 / 3, 32),
    "behind in every fold only": lambda score, reached: "",
}
RUNGS: Mapping[str, Sequence[float]] = {"1/3, 2/3": DEFAULT, "1/9, 1/3": (1 / 9, 1 / 3)}


def record(folder: Path, strength: float, seed: int) -> None:
    """Runs a planted study without pruning, scored at all rungs of `RECORDED`.

    Args:
        folder: of the study; its prices lie beside it.
        strength: drift of the hot asset, basis points a bar.
        seed: of the study.
    """
    prices = folder.with_name(f"{folder.name}-prices")
    market = PlantedCrypto(strength=strength * BASIS_POINT)
    write_planted_crypto(prices, BARS, 0, market)
    env = {"data": {"folder": str(prices)}, "features": list(PLANTED_FEATURES)}
    config = study_config(env, SIZE, pruning=False, record=True)
    config["study"] |= {"seed": seed}
    config["study"]["pruning"] |= {"rungs": list(RECORDED)}
    run_study(config, folder)


def compare(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """What each rule would have left of each study: `study` and its facts, `rules` by rungs."""
    return [_compared(folder) for folder in folders]


def _compared(folder: Path) -> dict[str, Any]:
    with StudyReader(StudyFolder(folder)) as reader:
        recorded = reader.study.pruning.rungs
        facts = {
            "study": folder.name,
            "environment": reader.config.short_name,
            "trials": len(reader.trials()),
            "steps": steps_of(reader.config),
            "sampler": reader.study.sampler,
            "trials_in_flight": reader.study.trials_in_flight,
        }
    rows = []
    for label, shares in RUNGS.items():
        if not all(any(abs(share - one) < 1e-9 for one in recorded) for share in shares):
            continue
        for name, rule in RULES.items():
            rows.append({"rungs": label, "rule": name, **replay(folder, rule, shares)._asdict()})
    return {**facts, "rules": rows}


def table(studies: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: for each rule what it leaves of all studies, and the worst that it does."""
    lines = [
        "| rungs | rule | training left | best 5 kept | best 10 kept | lost of the best score |",
        "|---|---|---|---|---|---|",
    ]
    keys = list(dict.fromkeys((r["rungs"], r["rule"]) for one in studies for r in one["rules"]))
    for key in keys:
        mine = [r for one in studies for r in one["rules"] if (r["rungs"], r["rule"]) == key]
        left = [f"{100 * r['iterations']:.0f}" for r in mine]
        five = [f"{r['top_left']}" for r in mine]
        ten = [f"{r['candidates_left']}" for r in mine]
        lost = [f"{r['regret']:.2f}" for r in mine]
        cells = (f"{', '.join(left)} %", ", ".join(five), ", ".join(ten), ", ".join(lost))
        lines.append(f"| {key[0]} | {key[1]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(words: Sequence[str]) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m slipstream.bench.pruning_rules")
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("record", help="run a planted study that is scored at all rungs")
    one.add_argument("folder", type=Path)
    one.add_argument("--strength", type=float, default=8.0, help="basis points a bar")
    one.add_argument("--seed", type=int, default=0)
    many = verbs.add_parser("compare", help="replay all rules over recorded studies")
    many.add_argument("folders", type=Path, nargs="+")
    many.add_argument("--json", type=Path)
    asked = parser.parse_args(words)
    if asked.verb == "record":
        record(asked.folder, asked.strength, asked.seed)
        return
    studies = compare(asked.folders)
    print(table(studies))
    if asked.json is not None:
        names = " ".join(folder.name for folder in asked.folders)
        write_result(
            asked.json,
            {
                "command": f"python -m slipstream.bench.pruning_rules compare {names}",
                "machine": machine.describe() | {"date": time.strftime("%Y-%m-%d")},
                "versions": machine.versions(),
                "studies": studies,
            },
        )


if __name__ == "__main__":
    main(sys.argv[1:])
