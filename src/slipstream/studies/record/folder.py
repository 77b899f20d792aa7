"""StudyFolder: the files of a study, its lock, and the identity check on resume.

study.yaml has the sections of a run and the `study` section.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from slipstream.core.config import validate
from slipstream.core.errors import CheckpointError, ConfigError, DataError, VersionError
from slipstream.core.extras import pip_install_command
from slipstream.core.safe_io import read_json
from slipstream.core.storage import folder_registry, yaml_file
from slipstream.core.storage.atomic_io import (
    LOCK,
    acquire_lock,
    disk_errors,
    is_at_least_as_new,
    is_locked,
    make_folder,
    write_hashed,
)
from slipstream.core.storage.signals import STOP, clear_stop_request, request_stop
from slipstream.core.storage.status_file import EVENTS, LEDGER, LOG, STATUS, read_status
from slipstream.core.text import SummaryRepr
from slipstream.studies.config import StudyConfig
from slipstream.training.runs.run import STATE_SHAPE
from slipstream.training.settings.config import (
    ADDED,
    RETIRED,
    STUDY,
    RunConfig,
    read_config,
    section_of,
)
from slipstream.training.settings.trust import check_trust

if TYPE_CHECKING:  # imports Optuna, which commands that only read a study do not need
    from slipstream.studies.space import SearchSpace

STUDIES = "studies"
DATABASE = "study.db"  # Optuna's storage, unless another is named
_REMEDIES = {  # for files that others can be made from
    "result.json": "delete the file, and `slipstream resume` writes it again",
    STOP: "delete the file, and stop the study again",
}

_SHAPES: dict[str, Any] = {
    "result.json": {
        "study": str,
        "market": bool,
        "objective": str,
        "folds": int,
        "trials": dict.fromkeys(("started", "complete", "pruned", "failed"), int),
        "rungs": [{}],
        "confirmation": {"candidates": [{}], "seeds": int},
        "seconds": {"workers": {}},
        "steps": {},
        "sentences": [str],
    },
    "provenance.json": {
        "identity?": {},
        "environment?": {},
        "notes?": [str],
        "state?": STATE_SHAPE,
    },
    STOP: {"now": bool},
}

_Built = TypeVar("_Built")
OPTUNA = "optuna"  # its version, major and minor: samplers change with it
_IGNORED_TRAINING = (
    *("out", "shards", "keep_last", "checkpoint_every", "policy_every_episodes"),
    *("members", "seed"),
)
_RETIRED = {f"training.{name}" for name in RETIRED}
_ADDED = {f"training.{name}": before for name, before in ADDED.items()}
_MAX_DIFFERENCES = 4
_MISSING = "absent"


@dataclass(frozen=True, repr=False)
class StudyOutcome(SummaryRepr):
    """Outcome of a complete study.

    Attributes:
        winner: trial that was deployed; None if none is recommended.
        params: its hyperparameters, by name.
        overrides: its changes to the study's config, by key.
        forced: it was deployed by `force_deploy` although none is recommended.
        best_trial: trial with the best search score, which is optimistic by construction.
        best_score: that score.
        holdout_return: mean return of the winner on the hold-out; None without one.
        num_trials: number of trials by state: started, complete, pruned, failed, ...
        sentences: outcome in words, the most important first.
    """

    winner: int | None
    params: Mapping[str, Any]
    overrides: Mapping[str, Any]
    forced: bool
    best_trial: int | None
    best_score: float | None
    holdout_return: float | None
    num_trials: Mapping[str, int]
    sentences: tuple[str, ...]

    @classmethod
    def from_result(cls, result: Mapping[str, Any]) -> StudyOutcome:
        """Read it from the content of `result.json`."""
        winner, best = result.get("winner") or {}, result.get("best") or {}
        counts = {k: v for k, v in result["trials"].items() if isinstance(v, int)}
        return cls(
            winner=winner.get("trial"),
            params=winner.get("params", {}),
            overrides=winner.get("overrides", {}),
            forced=winner.get("forced", False),
            best_trial=best.get("trial"),
            best_score=best.get("score"),
            holdout_return=(result.get("holdout") or {}).get("mean_return"),
            num_trials=counts,
            sentences=tuple(result["sentences"]),
        )

    def summary(self) -> dict[str, object]:
        """Return winner, best trial and first sentence."""
        best = "none" if self.best_score is None else f"{self.best_score:.4g}"
        return {
            "winner": "none" if self.winner is None else f"trial {self.winner}",
            "trials": self.num_trials.get("started"),
            "best search score": best,
            "outcome": next(iter(self.sentences), None),
        }

    def __str__(self) -> str:
        """Return the sentences, one a line."""
        return "\n".join(self.sentences)


class StudyFolder(SummaryRepr, os.PathLike[str]):
    """One study's directory; also a path, for functions that take one.

    ::

        study.yaml        the resolved config with its `study` section: env, agent, training, ...
        provenance.json   command, code, libraries, machine, data hashes, identity
        study.db          Optuna's storage, for optuna-dashboard; others by --storage
        ledger.db         suggestions, outcomes, decisions: the record that results depend on
        live/             state of members under way
        weights/          final weights of finished members
        policy/           the deployable policy; policy-refit/ with --final-refit
        result.json       written at the end, see `slipstream.studies.outcome.result`
        study.html        the page
        machine.csv       resource usage of its sessions
        status.json       current status, for other processes; see `Logbook`
        events.jsonl      events with times, for programs
        log.txt           events and messages for people; log.txt.1 is the older part
        stop.json         a request by `slipstream stop` or `study stop`

    Attributes:
        path: absolute; config, ledger, machine, page, policy, refit: files and folders there.
        name: the last part of it.
        trust: code that its config names may run, whoever created the study.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path.expanduser()))  # `a/..` names what it means
        self.name = self.path.name
        self.config, self.ledger = self.path / "study.yaml", self.path / LEDGER
        self.machine, self.report_path = self.path / "machine.csv", self.path / "study.html"
        self.policy, self.refit = self.path / "policy", self.path / "policy-refit"
        self.trust = False
        self._lock: TextIO | None = None

    @classmethod
    def from_name(cls, name: str, parent: Path | None = None) -> StudyFolder:
        """Return ``studies/NAME``, or the folder itself if a path is given.

        Raises:
            ConfigError: the name cannot be a folder name.
        """
        if "/" in name or Path(name).is_absolute():
            return cls(Path(name))
        odd = not name.isprintable() or any(c in name for c in '\\:*?"<>|')
        if not name or name.startswith((".", "-")) or odd:
            raise ConfigError(
                f"--study-name {name!r} cannot be a folder's name: use letters, digits, dots, "
                "dashes and underscores."
            )
        return cls((parent or Path(STUDIES)) / name)

    @classmethod
    def open(cls, name: str, parent: Path | None = None, trust: bool = False) -> StudyFolder:
        """Open an existing study; arguments as for `from_name`, and `trust`, see the class.

        A name that is not below ``./studies`` is looked up in the register.

        Raises:
            CheckpointError: there is no such study, or several have that name.
        """
        folder = cls.from_name(name, parent)
        if parent is None and not folder.exists and not folder.config.is_file():
            folder = cls(folder_registry.find_folder(name, STUDY) or folder.path)
        if folder.ledger.is_file() and not folder.config.is_file():
            raise CheckpointError(
                f"{folder.config} is missing, without which the study cannot be read. Its trials "
                "are intact in ledger.db: restore the file from a backup, or run the `slipstream "
                "tune` command that began the study again with --study-name "
                f"{folder.handle}: it writes the file again and resumes the study."
            )
        if not folder.exists:
            place = folder.path.parent
            names = sorted(one.parent.name for one in place.glob("*/ledger.db"))
            known = f"it contains {', '.join(names)}" if names else "it contains none"
            raise CheckpointError(
                f"There is no study {folder.name} in {place}; {known}. Start one with "
                f"`slipstream tune CONFIG --study-name {folder.handle}`."
            )
        folder.trust = trust
        return folder

    def summary(self) -> dict[str, object]:
        """Return folder, state, number of trials and outcome of the study."""
        result, status = self.result or {}, read_status(self.path)
        state = "complete" if result else "new" if status is None else status.liveness()
        trials, winner = result.get("trials", {}), result.get("winner") or {}
        return {
            "folder": self.path,
            "state": state,
            "trials": trials.get("started"),
            "winner": f"trial {winner['trial']}" if winner else None,
            "outcome": next(iter(result.get("sentences", ())), None),
        }

    @property
    def handle(self) -> str:
        """Name for commands in this directory, or the path elsewhere; quoted for a shell."""
        here = self.path == Path(STUDIES).absolute() / self.name
        return shlex.quote(self.name if here else str(self.path))

    @property
    def exists(self) -> bool:
        """True if the study was created; the ledger is the last of its first files."""
        return self.ledger.is_file()

    @property
    def is_occupied(self) -> bool:
        """True if the folder contains something other than a study.

        Raises:
            ResourceError: the folder cannot be read.
        """
        if self.ledger.is_file() or not self.path.exists():
            return False
        with disk_errors(self.path):
            names = {one.name for one in self.path.iterdir()}
        if "identity" in self.provenance:  # a study that was killed in its first moment
            names -= {self.config.name, "provenance.json"}
        return bool(names - {LOCK, STATUS, EVENTS, LOG})

    def discard(self) -> None:
        """Remove a study without trials."""
        shutil.rmtree(self.path, ignore_errors=True)

    @property
    def has_report(self) -> bool:
        """True if the report is newer than the result."""
        return is_at_least_as_new(self.report_path, self.path / "result.json")

    @property
    def result(self) -> dict[str, Any] | None:
        """Content of `result.json`; None before the end."""
        return self._json("result.json")

    @property
    def provenance(self) -> dict[str, Any]:
        """Content of `provenance.json`."""
        return self._json("provenance.json") or {}

    @property
    def outcome(self) -> StudyOutcome | None:
        """Outcome of the study; None before the end."""
        result = self.result
        return None if result is None else StudyOutcome.from_result(result)

    def __fspath__(self) -> str:
        return str(self.path)

    @cached_property
    def base(self) -> RunConfig:
        """The config that trials vary; reading it imports what it names."""
        return read_study(self.config, self.trust)[0]

    @cached_property
    def study(self) -> StudyConfig:
        """The `study` section, which names no code."""
        return read_section(self.config)

    def update_provenance(self, **facts: Any) -> None:
        """Add JSON-able values to `provenance.json`."""
        write_hashed(self.path / "provenance.json", {**self.provenance, **facts})

    def save_result(self, result: dict[str, Any]) -> None:
        """Write `result.json`."""
        write_hashed(self.path / "result.json", result)

    def request_stop(self, now: bool) -> None:
        """Request a stop from the process that runs the study, or from the next one."""
        request_stop(self.path, now)

    @property
    def is_cut_requested(self) -> bool:
        """True if `study stop` requested that no further trial starts, until it is followed."""
        request = self._json(STOP)
        return bool(request and not request.get("now"))

    def clear_stop_request(self) -> None:
        """Clear a request that was followed."""
        (self.path / STOP).unlink(missing_ok=True)

    def lock(self) -> None:
        """Lock the study for this process until `unlock` or its death.

        Raises:
            ConfigError: another process runs the study.
        """
        make_folder(self.path)
        self._lock = acquire_lock(
            self.path,
            f"Another process runs the study {self.name}, and uses its cores already: a second one "
            f"would not be faster. Look at it with `slipstream study status {self.handle}`, or "
            f"stop it with `slipstream study stop {self.handle}`.",
        )
        clear_stop_request(self.path)  # it was for the process before

    @property
    def is_locked(self) -> bool:
        """True if a process runs the study."""
        return is_locked(self.path)

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _json(self, name: str) -> dict[str, Any] | None:
        remedy = _REMEDIES.get(name, "restore the file from a backup")
        intact = f"The study's trials are intact in ledger.db: {remedy}."
        return read_json(self.path / name, CheckpointError, intact, _SHAPES[name])


def _build_configs(values: Mapping[str, Any]) -> tuple[RunConfig, StudyConfig]:
    study = validate(StudyConfig, section_of(values, STUDY), STUDY)
    return RunConfig.from_mapping({k: v for k, v in values.items() if k != STUDY}), study


def write_study(base: RunConfig, study: StudyConfig, space: SearchSpace) -> str:
    """Return the text of study.yaml; `read_study` restores the configs from it."""
    section = {**study.model_dump(mode="json"), "space": space.to_mapping()}
    return yaml_file.dump({**base.as_mapping(), STUDY: section})


def read_section(path: Path) -> StudyConfig:
    """Read only the `study` section of a study.yaml; other sections import nothing."""

    return _read(path, lambda values: validate(StudyConfig, section_of(values, STUDY), STUDY))


def read_study(path: Path, trust: bool = False) -> tuple[RunConfig, StudyConfig]:
    """Read the base config and the `study` section of a study.yaml.

    Args:
        path: path of the file.
        trust: allow code that the file names, see `check_trust`.

    Raises:
        CheckpointError: the file is damaged or holds no study.
        TrustError: it names untrusted code.
    """

    def build(values: dict[str, Any]) -> tuple[RunConfig, StudyConfig]:
        check_trust(path.parent, values, trust)
        return _build_configs(values)

    return _read(path, build)


def _read(path: Path, build: Callable[[dict[str, Any]], _Built]) -> _Built:
    try:
        values = read_config(path)
        if STUDY not in values:
            raise ConfigError("It has no section `study`.")
        return build(values)
    except ConfigError as error:
        raise CheckpointError(
            f"{path} cannot be used: {error} The study's trials are intact in ledger.db: fix the "
            "file, restore it from a backup, or run the `slipstream tune` command that began the "
            f"study again with --study-name {path.parent.name}: it writes the file again and "
            "resumes the study."
        ) from None


def study_identity(base: RunConfig, config: StudyConfig, space: SearchSpace) -> dict[str, Any]:
    """Return the JSON-able settings that decide every trial, apart from the data."""
    sections = base.as_mapping()
    for name in _IGNORED_TRAINING:
        del sections["training"][name]
    sections["training"].pop("num_envs") if "training.num_envs" in space.ranges else None
    facts = {"study": config.identity(), "space": space.to_mapping()}
    return {**sections, **facts, OPTUNA: ".".join(metadata.version(OPTUNA).split(".")[:2])}


def describe_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe the changed settings, ```agent.n_epochs` was 4 and is 8``; empty without changes."""
    old, new = ({**_ADDED, **flatten(one)} for one in (before, now))
    keys = [key for key in {**old, **new} if key not in _RETIRED]
    changed = [key for key in keys if old.get(key, _MISSING) != new.get(key, _MISSING)]
    parts = [
        f"`{key}` was {old.get(key, _MISSING)} and is {new.get(key, _MISSING)}" for key in changed
    ]
    more = f"; and {len(parts) - _MAX_DIFFERENCES} more" if len(parts) > _MAX_DIFFERENCES else ""
    return "; ".join(parts[:_MAX_DIFFERENCES]) + more


def check_identity(
    name: str,
    stored: Mapping[str, Any],
    current: Mapping[str, Any],
    read_command: str,
    restart_command: str,
) -> None:
    """Check that a study resumes with the config and the space that it began with.

    Args:
        name: name of the study.
        stored: stored `study_identity`.
        current: current `study_identity`.
        read_command: command that still reads the study.
        restart_command: command that starts a new study.

    Raises:
        CheckpointError: the stored identity is missing.
        VersionError: another version of Optuna began the study.
        ConfigError: with the difference.
    """
    if not stored:
        raise CheckpointError(
            f"provenance.json of the study {name} is missing or has no `identity`, so its original "
            "settings cannot be compared. Its trials are intact in ledger.db: restore the file "
            "from a backup, or start another study with --study-name."
        )
    if stored.get(OPTUNA) != current[OPTUNA]:
        version = stored.get(OPTUNA, "an unknown version")
        line = pip_install_command(f"optuna=={version}.*")
        raise VersionError(
            f"The study {name} was begun with Optuna {version}, and this is Optuna "
            f"{current[OPTUNA]}: "
            "another minor version may suggest other trials (5.0 changed TPE). To resume it, "
            f"install its version (`{line}`). To start a new study, run `{restart_command}`. Its "
            f"results can still be read: `{read_command}`."
        )
    found = describe_difference(stored, current)
    if found:
        raise ConfigError(
            f"There is a study {name} already, started with other settings: {found}. To resume it, "
            "use its original settings (study.yaml has them, unless it was edited). Otherwise "
            "choose another name with --study-name."
        )


def check_data(name: str, before: str | None, now: str | None) -> None:
    """Check that a study resumes on the same prices.

    Raises:
        DataError: with both hashes.
    """
    if before != now:
        raise DataError(
            f"The prices of study {name} changed since it began: their sha256 was {before} and is "
            f"{now}. Restore the files to resume it, or start another study with --study-name for "
            "the new prices. Nothing was lost."
        )


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return settings by dotted name."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flatten(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return found
