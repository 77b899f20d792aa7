"""`slipstream status` of a study, and `best`: what a folder tells while a process may run it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from slipstream.core.errors import CheckpointError
from slipstream.core.printable import printable
from slipstream.files.lines import folder_lines, number
from slipstream.files.status import read_status
from slipstream.settings.config import resolve
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.reader import StudyReader, Trial

_SHOWN = 5


def status_lines(folder: StudyFolder) -> list[str]:
    """Where a study stands, in lines."""
    with StudyReader(folder) as reader:
        trials, result = reader.trials(), folder.result
        status, ranked = read_status(folder.path), best_trials(trials)
        if status is not None and not folder.locked:  # the ledger knows what a kill left unsaid
            states = [trial.state for trial in trials]
            counts = {kind: states.count(kind) for kind in ("complete", "pruned", "failed")}
            counts["inactive"] = sum(t.state == "complete" and t.inactive for t in trials)
            limit = int(reader.fact("cut") or reader.study.n_trials)
            done = len(trials) - states.count("running")
            best = status.best
            if ranked and best.get("trial") != ranked[0].number:
                best = {"score": ranked[0].score, "trial": ranked[0].number}
            status = replace(status, done=done, of=limit, unit="trials", counts=counts, best=best)
        resume = f"slipstream study resume {folder.handle}"
        lines = folder_lines(f"Study {folder.name} in {folder.path}", folder.path, resume, status)
        if ranked:
            lines.append("Best so far (chosen on the folds' tests: optimistic by construction):")
        for trial in ranked[:_SHOWN]:
            params = ", ".join(f"{name} {_short(value)}" for name, value in trial.params.items())
            lines.append(f"  trial {trial.number}: {number(trial.score or 0.0)}  {params}")
        failed = [trial for trial in trials if trial.state == "failed"]
        lines += [f"  failed: trial {trial.number}: {trial.reason}" for trial in failed[:_SHOWN]]
        lines += [] if result is None else result["sentences"]
        return [printable(line) for line in lines]


def best_trials(trials: list[Trial]) -> list[Trial]:
    """Complete, active trials by score, the best first; ties by number."""
    fine = [t for t in trials if t.state == "complete" and t.score is not None and not t.inactive]
    return sorted(fine, key=lambda t: (-(t.score or 0.0), t.number))


def best_config(folder: StudyFolder, number: int | None = None) -> str:
    """YAML that `slipstream train` takes: of a trial, else the winner, else the best one so far.

    Raises:
        CheckpointError: no trial has finished, or there is none of that number.
    """
    with StudyReader(folder) as reader:
        trials = {trial.number: trial for trial in reader.trials()}
        winner = (reader.result or {}).get("winner") or {}
        why = "as asked for"
        if number is None and winner:
            number, why = int(winner["trial"]), "the confirmed winner"
            if winner["forced"]:
                why = "deployed by force, not confirmed"
        if number is None:
            ranked = best_trials(list(trials.values()))
            if not ranked and any(trial.state == "complete" for trial in trials.values()):
                raise CheckpointError(
                    f"No trial of {folder.name} ended with policies that trade in every fold, so "
                    "none is best; print any with `slipstream study best "
                    f"{folder.handle} --trial N`."
                )
            if not ranked:
                raise CheckpointError(
                    f"No trial of {folder.name} has finished yet: see `slipstream study status "
                    f"{folder.handle}`."
                )
            number, why = ranked[0].number, "best score on the folds' tests, not confirmed"
        if number not in trials:
            raise CheckpointError(
                f"The study {folder.name} has no trial {number}; it has {len(trials)}, from 0 on."
            )
        config = resolve(reader.config, trials[number].overrides)
        score = trials[number].score
        told = "none" if score is None else f"{score:.6g}"
        head = f"# Study {printable(folder.name)}, trial {number}: {why}; score {told}.\n"
        return head + config.to_yaml()


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
