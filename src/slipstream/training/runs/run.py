"""Run: the directory of one training of M members."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from slipstream.core.argument_validation import validate_arguments
from slipstream.core.errors import CheckpointError, ConfigError, ResourceError, VersionError
from slipstream.core.safe_io import path_exists, read_json
from slipstream.core.storage import atomic_io, checkpoint, folder_registry, provenance
from slipstream.core.storage.atomic_io import LOCK, acquire_lock
from slipstream.core.storage.checkpoint import prune_chunks
from slipstream.core.storage.csv_table import read_table
from slipstream.core.storage.logbook import Logbook
from slipstream.core.storage.signals import clear_stop_request
from slipstream.core.storage.status_file import EVENTS, LOG, RUN, STATUS, read_status
from slipstream.core.text import SummaryRepr, print_to_stderr
from slipstream.core.version import __version__
from slipstream.rl.agents.agent_registry import get_agent_class
from slipstream.rl.best_policies import BEST, BestPolicies
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.policy_file import unpack
from slipstream.training.callbacks.events import Event
from slipstream.training.callbacks.metrics import (
    EVALUATIONS,
    METRICS,
    PeriodicPolicies,
    TableWriter,
)
from slipstream.training.callbacks.progress_reporter import ProgressReporter
from slipstream.training.callbacks.tensorboard import TensorBoardWriter, get_hyperparams
from slipstream.training.environments.evaluator import lost_sentence
from slipstream.training.settings.config import RunConfig, read_config
from slipstream.training.settings.trust import check_trust, enter

# Incremented when the meaning of state of shards or trainer changes; agents have their own
# version.
STATE_VERSION = 1

STATE_SHAPE = {"slipstream": str, "training": int, "agent": int}
CONFIG, PROVENANCE, CHECKPOINTS = "config.yaml", "provenance.json", "checkpoints"
RESULT, TENSORBOARD, REPORT = "result.json", "tensorboard", "report.html"
EPISODES = "episodes.csv"  # episodes of the report, one row each
_FAULTS, _LONGEST = 20, 2_000  # maximum number of stored faults, and characters of each
_SHAPES: dict[str, Any] = {
    RESULT: {
        **{"members": [{}], "progress": {}, "score_is": str, "chosen_on": str},
        **{"utd_ratio?": (int, float), "update_rows?": int},
    },
    PROVENANCE: {
        "test_reads?": int,
        "environment?": {},
        "notes?": [str],
        "device?": str,
        "num_envs_history?": [{"steps": int, "num_envs": int}],
    },
}
_PROGRESS = {
    **dict.fromkeys(("budget", "steps", "iterations", "updates"), int),
    **dict.fromkeys(("seconds_env", "seconds_policy", "seconds_update"), (int, float)),
    **dict.fromkeys(("seconds_validate", "wall"), (int, float)),
}


def _to_stderr(message: str) -> None:
    with suppress(OSError):  # a lost message must not stop the run
        print_to_stderr(message)


class MemberScore(NamedTuple):
    """Scores of one member in `result.json`; None if it has no such score.

    Attributes:
        member, seed: number of the member, and its seed.
        best_score, best_steps: validation score of its best policy, and the steps it had then.
        test_score, test_error: score of that policy on data that selected nothing, and its standard
            error.
        last_score, last_error: score of the final policy on the same data.
        failed: training stopped because a number was not finite.
    """

    member: int
    seed: int
    best_score: float | None = None
    best_steps: int | None = None
    test_score: float | None = None
    test_error: float | None = None
    last_score: float | None = None
    last_error: float | None = None
    failed: bool = False


class Run(SummaryRepr, os.PathLike[str]):
    """A run directory; also a path, for functions that take one.

    ::

        config.yaml       resolved config, `slipstream train` reproduces the run from it
        provenance.json   command, code, libraries, machine, data hashes, notices
        metrics.csv       one row per member and iteration
        evaluations.csv   one row per member and evaluation
        tensorboard/      curves under SB3's names and the settings, one folder per member
        checkpoints/      step-*/ with the complete state; bulk/ with its large parts
        best/             member-*/ with the best policy by validation
        result.json       written at the end
        status.json       current status for other processes; see `logbook`
        events.jsonl      events with times, machine-readable
        log.txt           events and messages as text; log.txt.1 holds the older part
        stop.json         stop request

    Attributes:
        path: absolute path of the directory.
        callback: writes tables, curves and the logbook; the trainer's first callback.
        logbook: status for other processes, held by a trainer.
        best: best policies by validation, by member.
    """

    def __init__(
        self,
        path: Path,
        config: RunConfig | None = None,
        log: Callable[[str], None] = _to_stderr,
        trust: bool = False,
    ) -> None:
        self.path, self._log = path, log
        self._config, self._trust = config, trust
        self.logbook = Logbook(path, "run", log)
        self._writers: tuple[TableWriter | TensorBoardWriter, ...] = ()
        self._policies: PeriodicPolicies | None = None
        self._reporter = ProgressReporter(self.logbook)
        self._lock: TextIO | None = None
        self.chunks: dict[str, str] = {}  # files in `bulk` of the current checkpoint, with sha256
        self.best = BestPolicies(path, self.notify)

    def notify(self, sentence: str) -> None:
        """Report a message to the user, and to the log during a session."""
        self._log(sentence)
        self.logbook.log(sentence)

    @classmethod
    def create(
        cls,
        config: RunConfig,
        out: str | Path | None = None,
        log: Callable[[str], None] = _to_stderr,
        overwrite: bool = False,
        **facts: Any,
    ) -> Run:
        """Create a new directory: `out`, else `training.out`, else a name with the time.

        The config is written last and makes the directory a run. A directory left without it by a
        killed process is reused.

        Args:
            config: resolved config.
            out: path of the directory.
            log: see `Run`.
            overwrite: remove an existing run first.
            facts: JSON-able values, added to `provenance.json`.

        Raises:
            ConfigError: the path exists already.
        """
        path = free_path(config, out, overwrite)
        run = cls(path, config.with_training(out=str(path)), log)
        try:
            if path_exists(path / CONFIG):
                run.lock()  # raises while another process trains it
                atomic_io.remove(path)
                run.close()
            with atomic_io.disk_errors(path):
                atomic_io.make_folder(path)
                run.lock()
                (path / CHECKPOINTS).mkdir(exist_ok=True)
                run.best.folder.mkdir(exist_ok=True)
            atomic_io.write_hashed(path / PROVENANCE, {**provenance.describe(), **facts})
            atomic_io.write_text(path / CONFIG, run.config.to_yaml())
            enter(path, "run", config.short_name, run.config.as_mapping(), run.notify)
        finally:
            run.close()
        return run

    @classmethod
    @validate_arguments
    def open(
        cls,
        path: str | os.PathLike[str],
        log: Callable[[str], None] = _to_stderr,
        trust: bool = False,
    ) -> Run:
        """Open an existing run directory, without importing anything that its config names.

        Args:
            path: the directory, or the name of one created by a command of this user.
            log: see `Run`.
            trust: allow code named by the config to run, whoever created the run.

        Raises:
            CheckpointError: it is not a run.
        """
        folder = Path(path).expanduser().absolute()
        if not path_exists(folder):
            folder = folder_registry.find_folder(path, RUN) or folder
        if not path_exists(folder / CONFIG):
            name = shlex.quote(os.fspath(path))
            if path_exists(folder / CHECKPOINTS) and is_not_a_run(folder):
                raise CheckpointError(
                    f"{folder} has no {CONFIG}: its training was stopped during start-up. Repeat "
                    f"the `slipstream train` command, with --out {name}."
                )
            study = f"It is a study: `slipstream study status {name}` shows its progress."
            given = "Give the directory that `slipstream train` printed."
            raise CheckpointError(
                f"{folder} is not a run directory: it has no {CONFIG}. "
                f"{study if path_exists(folder / 'study.yaml') else given}"
            )
        return cls(folder, None, log, trust)

    @property
    def config(self) -> RunConfig:
        """Resolved config; reading it imports the code that it names.

        Raises:
            TrustError: the code is not trusted.
        """
        if self._config is None:
            values = read_config(self.path / CONFIG)
            check_trust(self.path, values, self._trust)
            self._config = RunConfig.from_mapping(values)
        return self._config

    def summary(self) -> dict[str, object]:
        """Return path, status and score."""
        result = self.result or {}
        status = read_status(self.path)
        state = "complete" if result else "new" if status is None else status.liveness()
        members = len(result.get("members", ()))
        return {
            "folder": self.path,
            "state": state,
            "members": members or None,
            "score": None if self.score is None else f"{self.score:.6g}",
            "score is": result.get("score_is"),
            "report": self.path / "report.html" if path_exists(self.path / "report.html") else None,
        }

    @property
    def score(self) -> float | None:
        """Score of the best policy on data that selected nothing.

        These are new episodes, or the test split; without either, the validation that selected it.
        With several members it is the member with the best validation. None before the end of
        training.
        """
        known = [
            (score.best_score, score.test_score)
            for score in self.scores
            if score.best_score is not None
        ]
        if not known:
            return None
        best, test = max(known, key=lambda scores: scores[0])
        return best if test is None else test

    @property
    def scores(self) -> tuple[MemberScore, ...]:
        """Scores of all members; empty before the end of training."""
        members = (self.result or {}).get("members", ())
        return tuple(
            MemberScore(**{name: member[name] for name in MemberScore._fields if name in member})
            for member in members
        )

    @property
    def best_member(self) -> int:
        """Member whose best policy has the highest validation score.

        Raises:
            CheckpointError: no member has a policy yet.
        """
        return self.best.highest

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def members(self) -> list[int]:
        """Members with a best policy, that is with at least one validation."""
        return self.best.members

    def best_policy(self, member: int | None = None) -> Policy:
        """Load the best policy of a member, or of the best member."""
        tensors, manifest = self.best.load(self.best.highest if member is None else member)
        return unpack(tensors, manifest.get("policy"))

    def callback(self, event: Event) -> None:
        """Write the event to tables, curves and logbook."""
        if not self._writers:
            self.lock()
            self._writers = (
                TableWriter(self.path, self.notify),
                TensorBoardWriter(self.path / TENSORBOARD, get_hyperparams(self.config)),
            )
            every = self.config.training.policy_every_episodes
            if every is not None:
                phases = len(self.config.curriculum.phases)
                self._policies = PeriodicPolicies(self.path, every, phases, self.metrics)
        for writer in self._writers:
            writer(event)
        if self._policies is not None:
            self._policies(event)
        self._reporter(event)

    def close(self) -> None:
        """Close open files. Tables are on disk already; the last points of curves are flushed."""
        self._close_writers()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _close_writers(self) -> None:
        for writer in self._writers:
            with suppress(ResourceError):  # the full disk was reported before
                writer.close()

    def discard_if_unused(self) -> None:
        """Remove the directory if training ended before its first iteration."""
        if not path_exists(self.path / METRICS) and not checkpoint.checkpoints(
            self.path / CHECKPOINTS
        ):
            self.close()
            shutil.rmtree(self.path, ignore_errors=True)

    def lock(self) -> None:
        """Lock the run for training by this process, until `close` or its end.

        Partial files of a killed process are removed.

        Raises:
            ConfigError: another process trains it.
        """
        if self._lock is None:
            refusal = (
                f"Another process is training {self.path}. Wait for it, or stop it with "
                f"`slipstream stop {shlex.quote(str(self.path))}`."
            )
            self._lock = acquire_lock(self.path, refusal)
            atomic_io.remove_partials(self.path)
            clear_stop_request(self.path)  # a request to an earlier process
            for leftover in self.best.folder.glob(".member-*"):
                atomic_io.remove(leftover)

    def save_checkpoint(
        self,
        tensors: Mapping[str, Any],
        progress: Mapping[str, Any],
        bulk: Sequence[Mapping[str, str]] = (),
    ) -> Path:
        """Write the complete state, then delete the oldest checkpoints beyond `training.keep_last`.

        Table rows up to here are synced to disk first, so a resumed run finds them.

        Args:
            tensors: the state, NumPy arrays or CPU tensors.
            progress: fields of `Progress`; its `steps` names the folder.
            bulk: chunks of each shard that belong to it, see `write_chunks`.
        """
        for writer in self._writers:
            writer.sync()
        steps = int(progress["steps"])
        folder = self.path / CHECKPOINTS / checkpoint.checkpoint_name(steps)
        facts: dict[str, Any] = {"config": self.config.hash, "state": state_version(self.config)}
        self.chunks = {file: digest for shard in bulk for file, digest in shard.items()}
        facts |= {"steps": steps, "progress": dict(progress), "bulk": self.chunks}
        checkpoint.save(folder, tensors, facts)
        checkpoint.rotate(folder.parent, self.config.training.keep_last)
        if self.chunks:
            manifests = map(checkpoint.read_manifest, checkpoint.checkpoints(folder.parent))
            prune_chunks(
                self.bulk, {file for manifest in manifests for file in manifest.get("bulk", {})}
            )
        return folder

    @property
    def bulk(self) -> Path:
        """Folder of state chunks shared by checkpoints."""
        return self.path / "bulk"

    def load_checkpoint(self) -> tuple[checkpoint.Tensors, dict[str, Any]] | None:
        """Return tensors and progress of the newest valid checkpoint; None before the first one.

        Raises:
            CheckpointError: checkpoints exist, but none is valid.
            VersionError: another version wrote them.
        """
        read_table = f"slipstream evaluate {shlex.quote(str(self.path))}"
        again = f"slipstream train {shlex.quote(str(self.path / CONFIG))} --out NEW_DIRECTORY"

        def check(manifest: Mapping[str, Any]) -> None:
            check_state_version(manifest, self.config, f"{self.path}", read_table, again)
            budget, most = manifest["progress"]["budget"], self.config.training.total_timesteps
            if budget > max(
                most, manifest["progress"]["steps"]
            ):  # a curriculum may end before its budget
                raise CheckpointError(
                    f"A checkpoint of {self.path} has a budget of {budget:,} steps, but the run's "
                    f"config has {most:,}: it belongs to another run. Use another checkpoint, "
                    f"or train again with `{again}`."
                )

        shape = {"progress": _PROGRESS, "bulk?": {}, "state": STATE_SHAPE}
        loaded = checkpoint.load_latest(
            self.path / CHECKPOINTS, self.notify, self.config.hash, shape, check
        )
        if loaded is None:
            return None
        folder, tensors, manifest = loaded
        if folder != checkpoint.checkpoints(folder.parent)[-1]:
            self.notify(f"Continuing from {folder}, the newest valid checkpoint.")
        self.chunks = manifest.get("bulk", {})
        return tensors, manifest["progress"]

    def save_result(self, result: Mapping[str, Any]) -> None:
        """Write `result.json`: the run is complete, and its tables and curves are on disk."""
        self._close_writers()
        atomic_io.write_hashed(self.path / RESULT, result)

    @property
    def mark_reported(self) -> bool:
        """True if a report was written after the run was completed."""
        return atomic_io.is_at_least_as_new(self.path / REPORT, self.path / RESULT)

    @property
    def result(self) -> dict[str, Any] | None:
        """Content of `result.json`; None before the end."""
        return _read_json(self.path / RESULT)

    @property
    def provenance(self) -> dict[str, Any]:
        """Content of `provenance.json`."""
        return _read_json(self.path / PROVENANCE) or {}

    @property
    def num_envs_history(self) -> list[dict[str, int]]:
        """Sub-environments per member over time: ``num_envs`` from ``steps`` on."""
        first = [{"steps": 0, "num_envs": self.config.num_envs}]
        return self.provenance.get("num_envs_history") or first

    @property
    def test_reads(self) -> int:
        """Number of times the test split was scored, by the end of training and by evaluations."""
        return max(0, int(self.provenance.get("test_reads", 0)))

    def count_test_read(self) -> int:
        """Record an access to the test split, if possible; return the number of accesses."""
        reads = self.test_reads + 1
        with suppress(ResourceError):  # a read-only directory can still be evaluated
            self.record(test_reads=reads)
        return reads

    def record(self, **facts: Any) -> None:
        """Add JSON-able values to `provenance.json`, such as data hashes and notices."""
        atomic_io.write_hashed(self.path / PROVENANCE, {**self.provenance, **facts})

    @property
    def device(self) -> str:
        """Device of the last training session; default for resuming."""
        return str(self.provenance.get("device", self.config.training.device))

    def resume_config(self, device: str | None = None, num_envs: int | None = None) -> RunConfig:
        """Return the config with the device and the sub-environments per member for resuming.

        A run of a GPU is resumed on a CPU in float32, the only precision available there.

        Args:
            device, num_envs: new values; None for no change.

        Raises:
            ConfigError: the agent's sizes do not fit this number of sub-environments.
        """
        number = self.num_envs_history[-1]["num_envs"] if num_envs is None else num_envs
        device = device or self.device
        moved = device == "cpu" != self.config.training.device
        changes = {"device": device, **({"precision": "float32"} if moved else {})}
        return self.config.with_num_envs(number).with_training(**changes)

    def log_notice(self, sentence: str, **facts: Any) -> None:
        """Log a notice about the run's results, and record it with metadata."""
        self.notify(sentence)
        self.record(notes=[*self.provenance.get("notes", []), sentence], **facts)

    def log_changes(self, config: RunConfig, steps: int) -> None:
        """Log a change of the device or of the number of sub-environments from these steps on."""
        before, device = self.device, config.training.device
        if device != before:
            rounded = self.config.training.precision != "float32"
            where = f"{device} in {config.training.precision}" if rounded else device
            self.log_notice(
                f"From step {steps:,} on this run is trained on {where}, before on {before}. It "
                "agrees with a run that was never moved only up to rounding.",
                device=device,
            )
        history, now = self.num_envs_history, config.num_envs
        if now != history[-1]["num_envs"]:
            more = now > history[-1]["num_envs"]
            empty = config.agent.replay(now) is not None
            self.log_notice(
                f"From step {steps:,} on this run has num_envs {now} per member, before "
                f"{history[-1]['num_envs']}: environments are {'added' if more else 'dropped'}"
                f"{', its replay buffer starts empty,' if empty else ''} and its results differ "
                "from those of any run with a constant num_envs.",
                num_envs_history=[*history, {"steps": steps, "num_envs": now}],
            )

    def log_faults(self, faults: Sequence[Any]) -> None:
        """Log and record faults of environments and their processes."""
        lost = lost_sentence(faults)
        if lost:
            self.notify(lost)
        texts = [str(fault)[:_LONGEST] for fault in faults if fault.kind != "given up"]
        if not texts:
            return
        known = self.provenance.get("faults", {"number": 0, "last": []})
        number = known["number"] + len(texts)
        self.record(faults={"number": number, "last": [*known["last"], *texts][-_FAULTS:]})
        self.notify(
            f"{len(texts)} failures of environments or their processes ({number} in this run), "
            f"the first: {texts[0].splitlines()[0]} Their steps are not used for learning, and "
            "their episodes count as truncated. The texts are in provenance.json."
        )

    def metrics(self) -> dict[str, list[float | str | None]]:
        """Return the columns of `metrics.csv`."""
        return read_table(self.path / METRICS, numbers=("member", "steps", "score"))

    def resource_usage(self) -> dict[str, float | None]:
        """Return mean resource usage over its rows; None if it was not measured."""
        columns = self.metrics()
        means: dict[str, float | None] = {}
        for name in ("cpu_percent", "memory_gib", "gpu_percent", "vram_gib"):
            known = [value for value in columns.get(name, ()) if isinstance(value, float)]
            means[name] = sum(known) / len(known) if known else None
        return means

    def evaluations(self) -> dict[str, list[float | str | None]]:
        """Return the columns of `evaluations.csv`."""
        return read_table(
            self.path / EVALUATIONS, numbers=("member", "steps", "score"), names=("split",)
        )


def _read_json(path: Path) -> dict[str, Any] | None:
    remedy = "Restore it, or delete it: `slipstream resume` then continues without it."
    return read_json(path, CheckpointError, remedy, _SHAPES[path.name])


def free_path(config: RunConfig, out: str | Path | None = None, overwrite: bool = False) -> Path:
    """Return the absolute path of a new run: `out`, else `training.out`, else a name with the time.

    Args:
        config, out: see above.
        overwrite: an existing run is allowed; anything else is not.

    Raises:
        ConfigError: the path exists already.
    """
    requested = out if out is not None else config.training.out
    if not requested:
        return _fresh_name(config.short_name)
    path = Path(requested).expanduser().absolute()
    if path_exists(path) and not path.is_dir():
        raise ConfigError(
            f"{path} is a file, but a run needs a directory of its own. Give --out a path that "
            "does not exist."
        )
    if overwrite and path_exists(path / CONFIG) and path_exists(path / PROVENANCE):
        return path
    if path_exists(path) and not is_not_a_run(path):
        held = "holds a run" if path_exists(path / CONFIG) else "is not empty"
        raise ConfigError(
            f"{path} {held} already and is not overwritten. Continue it with `slipstream resume "
            f"{shlex.quote(str(path))}`, or give another directory with --out."
        )
    return path


def is_not_a_run(path: Path) -> bool:
    """Return whether a directory is empty or contains only a run that was killed at its start."""
    with atomic_io.disk_errors(path):
        names = {entry.name for entry in path.iterdir() if not atomic_io.is_partial(entry)}
        begun = not any(
            any((path / name).iterdir()) for name in (CHECKPOINTS, BEST) if (path / name).is_dir()
        )
    return begun and names <= {CHECKPOINTS, BEST, PROVENANCE, LOCK, STATUS, EVENTS, LOG}


def _fresh_name(name: str) -> Path:
    """Return ``runs/<env>-<date>-<time>``, numbered if it exists."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path(os.getcwd()) / "runs" / f"{name}-{stamp}"
    path, number = base, 2
    while path.exists():
        path = base.with_name(f"{base.name}-{number}")
        number += 1
    return path


def state_version(config: RunConfig) -> dict[str, Any]:
    """Return the versions of the state that this version writes, JSON-able."""
    agent = get_agent_class(config.agent).state_version
    return {"slipstream": __version__, "training": STATE_VERSION, "agent": agent}


def check_state_version(
    written: Mapping[str, Any], config: RunConfig, what: str, read_table: str, again: str
) -> None:
    """Raise if a state was written by a version with another meaning of states.

    Args:
        written: JSON that may contain the result of `state_version` as ``state``.
        config: config of the run or study.
        what: its name for the user.
        read_table: command that still reads it.
        again: command that starts again.

    Raises:
        VersionError: names the version that wrote it.
    """
    now = state_version(config)
    before = written.get("state", now)
    numbers = ("training", "agent")
    if all(before[name] == now[name] for name in numbers):
        return
    old, new = (" and ".join(f"{n} {v[n]}" for n in numbers) for v in (before, now))
    raise VersionError(
        f"{what} was written by slipstream {before['slipstream']}, whose states ({old}) are "
        f"incompatible with this version ({now['slipstream']}: {new}), so it cannot be resumed "
        f"here. Use the version that wrote it, or start again with `{again}`. Its results can "
        f"still be read: `{read_table}`."
    )
