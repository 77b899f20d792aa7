"""`slipstream study status` and `best`: what a folder tells while another process may run it."""

from __future__ import annotations

from typing import Any

from slipstream.core.errors import CheckpointError
from slipstream.studies.console import standing_line
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.reader import StudyReader, Trial
from slipstream.studies.standing import Standing
from slipstream.training.listeners.node_lines import node_lines
from slipstream.training.listeners.run_status import idle_line
from slipstream.training.record.status import Status, read_status
from slipstream.training.settings.config import resolve

_SHOWN = 5
_STALE_SECONDS = 60.0


def status_lines(folder: StudyFolder) -> list[str]:
    """Where a study stands, in lines."""
    with StudyReader(folder) as reader:
        trials = reader.trials()
        running = folder.locked
        lines = [f"Study {folder.name} in {folder.path}"]
        status = read_status(folder.path)
        if folder.result is not None and not running:
            lines.append("Complete.")
        elif running:
            lines.append(_running_line(status))
            if status is not None:
                lines += node_lines(status.details.get("nodes", ()))
        else:
            lines.append(idle_line(status, f"slipstream study resume {folder.handle}"))
        counts = [
            f"{sum(t.state == state for t in trials)} {state}"
            for state in ("complete", "pruned", "failed", "running")
        ]
        idle = sum(t.state == "complete" and t.inactive for t in trials)
        if idle:
            counts[0] += f" ({idle} inactive: hardly traded in a fold, cannot win)"
        asked = f"{len(trials)} of {reader.study.n_trials} trials asked"
        cut = reader.fact("cut")
        lines.append(f"{asked}{'' if cut is None else ', cut there'}: {', '.join(counts)}")
        ranked = best_trials(trials)
        if ranked:
            lines.append("Best so far (chosen on the folds' tests: optimistic by construction):")
        for trial in ranked[:_SHOWN]:
            params = ", ".join(f"{name} {_short(value)}" for name, value in trial.params.items())
            lines.append(f"  trial {trial.number}: {trial.score:.4g}  {params}")
        failed = [trial for trial in trials if trial.state == "failed"]
        for trial in failed[:_SHOWN]:
            lines.append(f"  failed: trial {trial.number}: {trial.reason}")
        result = folder.result
        if result is not None:
            lines += list(result.get("sentences", []))
        return lines


def _running_line(status: Status | None) -> str:
    if status is None or not status.details:
        return "It runs and has not begun its search yet."
    line = standing_line(Standing(**status.details))
    return line if status.age < _STALE_SECONDS else f"{line}  ({status.age:.0f} s ago)"


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
        head = f"# Study {folder.name}, trial {number}: {why}; score {told}.\n"
        return head + config.to_yaml()


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
