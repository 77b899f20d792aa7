"""Run: one directory that holds everything about one training of M members."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

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
from slipstream.rl.agents.discover import agent_class
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

# Goes up when what shards and the trainer keep beside the agent's state changes its meaning; an
# agent has a number of its own.
STATE_VERSION = 1

STATE_SHAPE = {"slipstream": str, "training": int, "agent": int}
CONFIG, PROVENANCE, CHECKPOINTS = "config.yaml", "provenance.json", "checkpoints"
RESULT, TENSORBOARD, REPORT = "result.json", "tensorboard", "report.html"
EPISODES = "episodes.csv"  # of the report, a row each
_FAULTS, _LONGEST = 20, 2_000  # faults whose texts are kept, and characters of one
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
        "copies?": [{"steps": int, "num_envs": int}],
    },
}
_PROGRESS = {
    **dict.fromkeys(("budget", "steps", "iterations", "updates"), int),
    **dict.fromkeys(("seconds_env", "seconds_policy", "seconds_update"), (int, float)),
    **dict.fromkeys(("seconds_validate", "wall"), (int, float)),
}


def _to_stderr(message: str) -> None:
    with suppress(OSError):  # nobody reads it: what is said matters less than what is done
        print_to_stderr(message)


class Run(SummaryRepr):
    """A run directory.

    ::

        config.yaml       resolved config, `slipstream train` reproduces the run from it
        provenance.json   command, code, libraries, machine, data hashes, notes
        metrics.csv       one row per member and iteration
        evaluations.csv   one row per member and evaluation
        tensorboard/      curves under SB3's names and the settings, one folder a member
        checkpoints/      step-*/ with the whole state, to resume from; bulk/ with its large parts
        best/             member-*/ with the policy that validation chose
        result.json       written at the end
        status.json       where it stands, for other processes; see `logbook`
        events.jsonl      what happened when, for machines
        log.txt           the same for people, and all that was said; log.txt.1 what was before it
        stop.json         a request to end

    Attributes:
        path: the directory, absolute.
        callback: writes tables, curves and the logbook; the trainer's first callback.
        logbook: what other processes are told; a trainer keeps it.
        best: the policies that validation chose, by member.
    """

    def __init__(
        self,
        path: Path,
        config: RunConfig | None = None,
        say: Callable[[str], None] = _to_stderr,
        trust: bool = False,
    ) -> None:
        self.path, self._say = path, say
        self._config, self._trust = config, trust
        self.logbook = Logbook(path, "run", say)
        self._writers: tuple[TableWriter | TensorBoardWriter, ...] = ()
        self._policies: PeriodicPolicies | None = None
        self._log = ProgressReporter(self.logbook)
        self._lock: TextIO | None = None
        self.chunks: dict[str, str] = {}  # files in `bulk` of the checkpoint in use, and sha256
        self.best = BestPolicies(path, self.notify)

    def notify(self, sentence: str) -> None:
        """Tells what had to be passed over; in a session, the log too."""
        self._say(sentence)
        self.logbook.say(sentence)

    @classmethod
    def create(
        cls,
        config: RunConfig,
        out: str | Path | None = None,
        say: Callable[[str], None] = _to_stderr,
        overwrite: bool = False,
        **facts: Any,
    ) -> Run:
        """Makes a new directory: `out`, else `training.out`, else one named by the time.

        The config is written last: with it the directory is a run. What a kill left without it is
        taken over.

        Args:
            config: resolved.
            out: where.
            say: see `Run`.
            overwrite: a run that is there already is removed first.
            facts: JSON-able, added to `provenance.json`.

        Raises:
            ConfigError: there is a run or anything else already.
        """
        path = free_path(config, out, overwrite)
        run = cls(path, config.with_training(out=str(path)), say)
        try:
            if path_exists(path / CONFIG):
                run.lock()  # refused while a process trains it
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
        cls, path: str | Path, say: Callable[[str], None] = _to_stderr, trust: bool = False
    ) -> Run:
        """An existing run directory; nothing that its config names is imported yet.

        Args:
            path: the directory, or the name of one that a command of this user made.
            say: see `Run`.
            trust: code that the config names may run, whoever made the run.

        Raises:
            CheckpointError: it is none.
        """
        folder = Path(path).expanduser().absolute()
        if not path_exists(folder):
            folder = folder_registry.find_folder(path, RUN) or folder
        if not path_exists(folder / CONFIG):
            name = shlex.quote(str(path))
            if path_exists(folder / CHECKPOINTS) and is_not_a_run(folder):
                raise CheckpointError(
                    f"{folder} has no {CONFIG}: its training was ended before it began. Give the "
                    f"same `slipstream train` command again, with --out {name}."
                )
            study = f"It is a study's: `slipstream study status {name}` says where that stands."
            given = "Give the directory that `slipstream train` printed."
            raise CheckpointError(
                f"{folder} is not a run directory: it has no {CONFIG}. "
                f"{study if path_exists(folder / 'study.yaml') else given}"
            )
        return cls(folder, None, say, trust)

    @property
    def config(self) -> RunConfig:
        """Resolved; reading it imports what it names.

        Raises:
            TrustError: that is code of somebody else's.
        """
        if self._config is None:
            values = read_config(self.path / CONFIG)
            check_trust(self.path, values, self._trust)
            self._config = RunConfig.from_mapping(values)
        return self._config

    def summary(self) -> dict[str, object]:
        """Where it is, where it stands, and what its chosen policy scores."""
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
        """What the policy that validation chose scores on data that chose nothing.

        Those are fresh episodes, or the test split; without either, the validation that chose it.
        Of several members the one whose validation was best. None before the training's end.
        """
        members = [one for one in (self.result or {}).get("members", ()) if "best_score" in one]
        known = [one for one in members if one["best_score"] is not None]
        if not known:
            return None
        best = max(known, key=lambda one: float(one["best_score"]))
        found = best.get("test_score")
        return float(best["best_score"] if found is None else found)

    @property
    def members(self) -> list[int]:
        """Members that were ever validated, as their best policies lie there."""
        return self.best.members

    def best_policy(self, member: int | None = None) -> Policy:
        """The policy that validation chose: of a member, else of the best one."""
        tensors, manifest = self.best.load(self.best.highest if member is None else member)
        return unpack(tensors, manifest.get("policy"))

    def callback(self, event: Event) -> None:
        """Writes the event down."""
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
        self._log(event)

    def close(self) -> None:
        """Closes what is open; the tables are on disk already, the last points of curves follow."""
        self._close_writers()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _close_writers(self) -> None:
        for writer in self._writers:
            with suppress(ResourceError):  # said before: the disk was full
                writer.close()

    def discard_if_unused(self) -> None:
        """Removes the directory when training ended before its first iteration: nothing is lost."""
        if not path_exists(self.path / METRICS) and not checkpoint.checkpoints(
            self.path / CHECKPOINTS
        ):
            self.close()
            shutil.rmtree(self.path, ignore_errors=True)

    def lock(self) -> None:
        """Makes this process the only one that trains this run, until `close` or its death.

        What a killed process left half written is removed.

        Raises:
            ConfigError: another process trains it.
        """
        if self._lock is None:
            refusal = (
                f"Another process is training {self.path}: wait for it, or stop it first, with "
                f"`slipstream stop {shlex.quote(str(self.path))}`."
            )
            self._lock = acquire_lock(self.path, refusal)
            atomic_io.remove_partials(self.path)
            clear_stop_request(self.path)  # it was for the process before
            for leftover in self.best.folder.glob(".member-*"):
                atomic_io.remove(leftover)

    def save_checkpoint(
        self,
        tensors: Mapping[str, Any],
        progress: Mapping[str, Any],
        bulk: Sequence[Mapping[str, str]] = (),
    ) -> Path:
        """Writes the whole state, then deletes the oldest beyond `training.keep_last`.

        The rows up to here are on the disk before: who goes on from it finds them.

        Args:
            tensors: the state, NumPy arrays or CPU tensors.
            progress: fields of `Progress`; its `steps` names the folder.
            bulk: of each shard the chunks that belong to it, see `write_chunks`.
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
            kept = map(checkpoint.read_manifest, checkpoint.checkpoints(folder.parent))
            prune_chunks(self.bulk, {file for one in kept for file in one.get("bulk", {})})
        return folder

    @property
    def bulk(self) -> Path:
        """Where chunks of the agent's state are that checkpoints share."""
        return self.path / "bulk"

    def load_checkpoint(self) -> tuple[checkpoint.Tensors, dict[str, Any]] | None:
        """Tensors and progress of the newest valid checkpoint; None before the first one.

        Raises:
            CheckpointError: there are some and none is valid.
            VersionError: another version wrote them.
        """
        read_table = f"slipstream evaluate {shlex.quote(str(self.path))}"
        again = f"slipstream train {shlex.quote(str(self.path / CONFIG))} --out NEW_DIRECTORY"

        def check(manifest: Mapping[str, Any]) -> None:
            check_state_version(manifest, self.config, f"{self.path}", read_table, again)
            budget, most = manifest["progress"]["budget"], self.config.training.total_timesteps
            if budget > max(most, manifest["progress"]["steps"]):  # a curriculum ends at its steps
                raise CheckpointError(
                    f"A checkpoint of {self.path} has a budget of {budget:,} steps, and the run's "
                    f"config {most:,}: the checkpoint is not the run's. Use another one, or "
                    f"train again with `{again}`."
                )

        shape = {"progress": _PROGRESS, "bulk?": {}, "state": STATE_SHAPE}
        found = checkpoint.load_latest(
            self.path / CHECKPOINTS, self.notify, self.config.hash, shape, check
        )
        if found is None:
            return None
        folder, tensors, manifest = found
        if folder != checkpoint.checkpoints(folder.parent)[-1]:
            self.notify(f"Going on from {folder}, the newest checkpoint that is whole.")
        self.chunks = manifest.get("bulk", {})
        return tensors, manifest["progress"]

    def save_result(self, result: Mapping[str, Any]) -> None:
        """Writes `result.json`: the run is complete, and its tables and curves are whole."""
        self._close_writers()
        atomic_io.write_hashed(self.path / RESULT, result)

    @property
    def mark_reported(self) -> bool:
        """Whether a report was written since the run is complete."""
        return atomic_io.is_at_least_as_new(self.path / REPORT, self.path / RESULT)

    @property
    def result(self) -> dict[str, Any] | None:
        """What `result.json` says; None before the end."""
        return _read_json(self.path / RESULT)

    @property
    def provenance(self) -> dict[str, Any]:
        """What `provenance.json` says."""
        return _read_json(self.path / PROVENANCE) or {}

    @property
    def num_envs_history(self) -> list[dict[str, int]]:
        """From which step on there were how many copies per member: ``steps`` and ``num_envs``."""
        first = [{"steps": 0, "num_envs": self.config.num_envs}]
        return self.provenance.get("copies") or first

    @property
    def test_reads(self) -> int:
        """How often the test split was scored: by the end of training, and by every evaluation."""
        return max(0, int(self.provenance.get("test_reads", 0)))

    def count_test_read(self) -> int:
        """Writes down one more look at the test split, where that can be written; their number."""
        reads = self.test_reads + 1
        with suppress(ResourceError):  # a directory that may only be read is still evaluated
            self.record(test_reads=reads)
        return reads

    def record(self, **facts: Any) -> None:
        """Adds JSON-able facts to `provenance.json`: data hashes, notes."""
        atomic_io.write_hashed(self.path / PROVENANCE, {**self.provenance, **facts})

    @property
    def device(self) -> str:
        """Device that it was trained on last; it is resumed there unless another one is given."""
        return str(self.provenance.get("device", self.config.training.device))

    def resume_config(self, device: str | None = None, num_envs: int | None = None) -> RunConfig:
        """Return the config with the device and the copies per member that it is resumed with.

        On a CPU a GPU's run is resumed in float32, the one precision that every form has there.

        Args:
            device, num_envs: as until now unless given.

        Raises:
            ConfigError: the agent's sizes do not fit so many copies.
        """
        copies = self.num_envs_history[-1]["num_envs"] if num_envs is None else num_envs
        device = device or self.device
        moved = device == "cpu" != self.config.training.device
        changes = {"device": device, **({"precision": "float32"} if moved else {})}
        return self.config.with_num_envs(copies).with_training(**changes)

    def log_notice(self, sentence: str, **facts: Any) -> None:
        """Say a sentence about the run's results, and record it with facts."""
        self.notify(sentence)
        self.record(notes=[*self.provenance.get("notes", []), sentence], **facts)

    def log_changes(self, config: RunConfig, steps: int) -> None:
        """Note another device, and another number of copies, from so many steps on."""
        before, device = self.device, config.training.device
        if device != before:
            rounded = self.config.training.precision != "float32"
            where = f"{device} in {config.training.precision}" if rounded else device
            self.log_notice(
                f"From step {steps:,} on this run is trained on {where}, before that it was on "
                f"{before}: it agrees to rounding only with a run that was never moved.",
                device=device,
            )
        copies, now = self.num_envs_history, config.num_envs
        if now != copies[-1]["num_envs"]:
            more = now > copies[-1]["num_envs"]
            empty = config.agent.replay(now) is not None
            self.log_notice(
                f"From step {steps:,} on this run has {now} copies per member, before that it had "
                f"{copies[-1]['num_envs']}: {'more begin' if more else 'those beyond are dropped'}"
                f"{' and its replay begins empty' if empty else ''}, and its results differ from "
                "those of any run whose copies were not changed.",
                copies=[*copies, {"steps": steps, "num_envs": now}],
            )

    def log_faults(self, faults: Sequence[Any]) -> None:
        """Say and record what failed in copies or their processes."""
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
            f"{len(texts)} failures of copies or their processes ({number} in this run), the "
            f"first: {texts[0].splitlines()[0]} Their steps are not learned from, their episodes "
            "count as truncated; the texts are in provenance.json."
        )

    def metrics(self) -> dict[str, list[float | str | None]]:
        """Columns of `metrics.csv`."""
        return read_table(self.path / METRICS, numbers=("member", "steps", "score"))

    def resource_usage(self) -> dict[str, float | None]:
        """Means over its rows of what it took of the machine; None where nobody measured."""
        columns = self.metrics()
        found: dict[str, float | None] = {}
        for name in ("cpu_percent", "memory_gib", "gpu_percent", "vram_gib"):
            known = [value for value in columns.get(name, ()) if isinstance(value, float)]
            found[name] = sum(known) / len(known) if known else None
        return found

    def evaluations(self) -> dict[str, list[float | str | None]]:
        """Columns of `evaluations.csv`."""
        return read_table(
            self.path / EVALUATIONS, numbers=("member", "steps", "score"), names=("split",)
        )


def _read_json(path: Path) -> dict[str, Any] | None:
    remedy = "Restore it, or delete it: `slipstream resume` then goes on without what it said."
    return read_json(path, CheckpointError, remedy, _SHAPES[path.name])


def free_path(config: RunConfig, out: str | Path | None = None, overwrite: bool = False) -> Path:
    """The absolute path of a new run: `out`, else `training.out`, else a name by the time.

    Args:
        config, out: see above.
        overwrite: a run may be there already; anything else may not.

    Raises:
        ConfigError: there is something already.
    """
    wanted = out if out is not None else config.training.out
    if not wanted:
        return _fresh_name(config.short_name)
    path = Path(wanted).expanduser().absolute()
    if path_exists(path) and not path.is_dir():
        raise ConfigError(
            f"{path} is a file, and a run is written into a directory of its own: name one that "
            "does not exist with --out."
        )
    if overwrite and path_exists(path / CONFIG) and path_exists(path / PROVENANCE):
        return path
    if path_exists(path) and not is_not_a_run(path):
        held = "holds a run" if path_exists(path / CONFIG) else "is not empty"
        raise ConfigError(
            f"{path} {held} already and is not overwritten. Go on with it by `slipstream resume "
            f"{shlex.quote(str(path))}`, or name another directory with --out."
        )
    return path


def is_not_a_run(path: Path) -> bool:
    """Whether a directory is empty, or holds no more than a run that was killed as it began."""
    with atomic_io.disk_errors(path):
        names = {one.name for one in path.iterdir() if not atomic_io.is_partial(one)}
        begun = not any(
            any((path / name).iterdir()) for name in (CHECKPOINTS, BEST) if (path / name).is_dir()
        )
    return begun and names <= {CHECKPOINTS, BEST, PROVENANCE, LOCK, STATUS, EVENTS, LOG}


def _fresh_name(name: str) -> Path:
    """``runs/<env>-<date>-<time>``, numbered where two begin in one second."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path(os.getcwd()) / "runs" / f"{name}-{stamp}"
    path, number = base, 2
    while path.exists():
        path = base.with_name(f"{base.name}-{number}")
        number += 1
    return path


def state_version(config: RunConfig) -> dict[str, Any]:
    """JSON-able numbers of what this version writes, and its name."""
    agent = agent_class(config.agent).state_version
    return {"slipstream": __version__, "training": STATE_VERSION, "agent": agent}


def check_state_version(
    written: Mapping[str, Any], config: RunConfig, what: str, read_table: str, again: str
) -> None:
    """Refuses to go on from a state of another meaning.

    Args:
        written: JSON that may hold a `state_version` as ``state``.
        config: of the run or study.
        what: its name for the user.
        read: a command that still reads it; again: one that begins anew.

    Raises:
        VersionError: with the version that wrote it.
    """
    now = state_version(config)
    before = written.get("state", now)
    numbers = ("training", "agent")
    if all(before[name] == now[name] for name in numbers):
        return
    old, new = (" and ".join(f"{n} {v[n]}" for n in numbers) for v in (before, now))
    raise VersionError(
        f"{what} was written by slipstream {before['slipstream']}, whose states (of {old}) mean "
        f"something else than those of this one ({now['slipstream']}: {new}): it cannot be gone on "
        f"with here. Use the version that wrote it, or begin anew with `{again}`. What is there "
        f"can still be read_table: `{read_table}`."
    )
