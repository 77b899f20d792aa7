"""What machines of one study send each other: JSON and arrays under a hash, never code.

Whoever can write to a database must not be able to run anything here: nothing is unpickled, names
are checked before they become files' names, and a member's config is resolved again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import CheckpointError, ConfigError, KernelError, SlipstreamError
from slipstream.studies.engine.member import DailyReturns, Member, Outcome
from slipstream.studies.engine.seats import Lost
from slipstream.studies.engine.state import fingerprint
from slipstream.studies.engine.stretch import Task
from slipstream.studies.record.rows import Slot
from slipstream.training.config import RunConfig
from slipstream.training.files import plain

FORMAT = 1
_MAGIC = b"slipstream parcel 1\n"
_HASH = 32  # bytes
_COLUMNS = {"days": "<i8", "returns": "<f8", "benchmark": "<f8", "group": "<i8"}
_BLAMED: dict[str, type[SlipstreamError]] = {
    "KernelError": KernelError,
    "ConfigError": ConfigError,
}
"""What a member's own numbers can cause; other errors are the machine's."""


@dataclass(frozen=True)
class Copies:
    """Where this machine has what the study's owner has elsewhere.

    Attributes:
        env: the owner's name of the environment, and `own_env` this machine's.
        folder: the owner's folder of prices, and `own_folder` this machine's; None: no prices.
    """

    env: str
    own_env: str
    folder: str | None
    own_folder: str | None

    def own(self, config: RunConfig) -> RunConfig:
        """A config of the study as this machine can load it."""
        settings = self._settings(config.env_settings)
        return replace(config, env_name=self.own_env, env_settings=settings)

    def resolve(self, values: Mapping[str, Any]) -> RunConfig:
        """The owner's config from its mapping, checked as if it were this machine's.

        Raises:
            ConfigError: it is not a config, or of another environment.
        """
        section = dict(values.get("env") or {})
        name = section.pop("name", None)
        if name != self.env:
            raise ConfigError(f"A member of environment {name!r} came in a study of {self.env!r}.")
        own = {"name": self.own_env, **self._settings(section)}
        config = RunConfig.from_mapping({**values, "env": own})
        return replace(config, env_name=self.env, env_settings=section)

    def _settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        data = settings.get("data")
        if not isinstance(data, Mapping) or data.get("folder") is None:
            return dict(settings)
        if data["folder"] != self.folder:
            raise ConfigError(
                f"A member reads {data['folder']!r}, the study's data are in {self.folder!r}."
            )
        return {**settings, "data": {**data, "folder": self.own_folder}}


def pack(facts: Any, blobs: Mapping[str, bytes] | None = None) -> bytes:
    """JSON-able facts and named bytes as one parcel."""
    blobs = blobs or {}
    head = json.dumps([plain(facts), [[name, len(blob)] for name, blob in blobs.items()]]).encode()
    body = b"".join((len(head).to_bytes(8, "big"), head, *blobs.values()))
    return _MAGIC + hashlib.sha256(body).digest() + body


def unpack(content: bytes) -> tuple[Any, dict[str, bytes]]:
    """What was packed.

    Raises:
        CheckpointError: it is no parcel, or not a whole one.
    """
    start = len(_MAGIC) + _HASH
    body = content[start:]
    if content[: len(_MAGIC)] != _MAGIC:
        raise CheckpointError(
            f"A parcel of {len(content)} bytes in the database is not slipstream's, or another "
            "version's: use one version on all machines, and a database that nobody else writes."
        )
    if hashlib.sha256(body).digest() != content[len(_MAGIC) : start]:
        raise CheckpointError(
            f"A parcel of {len(content)} bytes in the database is damaged: its hash is not that of "
            "its content."
        )
    length = int.from_bytes(body[:8], "big")
    facts, sizes = json.loads(body[8 : 8 + length])
    blobs, at = {}, 8 + length
    for name, size in sizes:
        blobs[name] = body[at : at + size]
        at += size
    return facts, blobs


def pack_tasks(tasks: Sequence[Task]) -> bytes:
    """A stretch that another machine shall do."""
    return pack(
        [
            {
                "name": task.member.name,
                "config": task.member.config.as_mapping(),
                "fold": task.member.fold,
                "test": task.member.test,
                "seed": task.member.seed,
                "budget": task.member.budget,
                "until": task.until,
                "fingerprint": fingerprint(task.member),
            }
            for task in tasks
        ]
    )


def unpack_tasks(content: bytes, copies: Copies) -> list[Task]:
    """The stretch that a parcel describes.

    Raises:
        CheckpointError: it is damaged, describes no stretch, or this machine understands a member
            otherwise than its sender.
    """
    facts, _ = unpack(content)
    try:
        return [_task(one, copies) for one in facts]
    except (KeyError, TypeError, ValueError, AttributeError, SlipstreamError) as error:
        raise CheckpointError(f"A parcel in the database is no stretch of work: {error}") from error


def _task(facts: Mapping[str, Any], copies: Copies) -> Task:
    name = facts["name"]
    if Slot.parse(name).name != name:  # it becomes a file's name
        raise ValueError(f"{name!r} is no member's name")
    numbers = [facts[key] for key in ("seed", "budget", "until")]
    texts = [facts["fold"], facts["test"] or ""]
    if not all(type(one) is int and one >= 0 for one in numbers):
        raise ValueError(f"{name} has seed, budget and milestone {numbers}")
    if not all(isinstance(one, str) for one in texts):
        raise ValueError(f"{name} has splits {texts}")
    seed, budget, until = numbers
    config = copies.resolve(facts["config"])
    member = Member(name, config, facts["fold"], facts["test"], seed, budget)
    if fingerprint(member) != facts["fingerprint"]:
        raise ValueError(f"this machine resolves the config of {name} otherwise than its sender")
    return Task(member, until)


def pack_answer(answer: Sequence[Outcome] | Lost | SlipstreamError) -> bytes:
    """What came of a stretch."""
    if isinstance(answer, Lost):
        return pack({"lost": [answer.how, answer.cause]})
    if isinstance(answer, SlipstreamError):
        return pack({"error": [type(answer).__name__, str(answer)]})
    outcomes, blobs = [], {}
    for one in answer:
        facts = {key: getattr(one, key) for key in ("name", "milestone", "failed", "reason")}
        facts |= {"steps": one.steps, "seconds": dict(one.seconds), "metrics": None}
        if one.passes is not None:
            facts["metrics"] = list(one.passes.metrics)
            for column, dtype in _COLUMNS.items():
                array = np.ascontiguousarray(getattr(one.passes, column), dtype)
                blobs[f"{one.name}/{column}"] = array.tobytes()
        outcomes.append(facts)
    return pack({"outcomes": outcomes}, blobs)


def unpack_answer(content: bytes, tasks: Sequence[Task]) -> list[Outcome] | Lost | SlipstreamError:
    """The answer that a parcel holds, to these tasks.

    Raises:
        CheckpointError: it is damaged, or answers something else.
    """
    facts, blobs = unpack(content)
    try:
        if "lost" in facts:
            how, cause = facts["lost"]
            if cause not in Lost.CAUSES or not isinstance(how, str):
                raise ValueError(f"lost by {cause!r}")
            return Lost(how, cause)
        if "error" in facts:
            kind, text = facts["error"]
            return _BLAMED[kind](str(text))
        found = [_outcome(one, blobs) for one in facts["outcomes"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"A parcel in the database is no answer: {error!r}") from error
    expected = [(task.member.name, task.until, task.member.test is not None) for task in tasks]
    for one, (name, until, tested) in zip(found, expected, strict=False):
        fine = one.failed or (one.passes is not None) == tested
        if (one.name, one.milestone) != (name, until) or not fine:
            raise CheckpointError(
                f"A parcel in the database has the outcome of {one.name} at {one.milestone} where "
                f"that of {name} at {until} was expected."
            )
    if len(found) != len(expected):
        raise CheckpointError(
            f"A parcel in the database has {len(found)} outcomes where {len(expected)} were "
            "expected."
        )
    return found


def blamed(error: Exception) -> bool:
    """Whether an error is a member's own, on any machine."""
    return type(error) in _BLAMED.values()


def _outcome(facts: Mapping[str, Any], blobs: Mapping[str, bytes]) -> Outcome:
    name, passes = str(facts["name"]), None
    if facts["metrics"] is not None:
        days, returns, benchmark, group = (
            _array(blobs[f"{name}/{column}"], dtype) for column, dtype in _COLUMNS.items()
        )
        if len({len(one) for one in (days, returns, benchmark, group)}) != 1:
            raise ValueError(f"the columns of {name} are not equally long")
        passes = DailyReturns(
            days, returns, benchmark, group, [dict(one) for one in facts["metrics"]]
        )
    seconds = {str(kind): float(value) for kind, value in facts["seconds"].items()}
    return Outcome(
        name,
        int(facts["milestone"]),
        passes,
        bool(facts["failed"]),
        str(facts["reason"]),
        int(facts["steps"]),
        seconds,
    )


def _array(content: bytes, dtype: str) -> NDArray[Any]:
    return np.frombuffer(content, dtype).astype(np.dtype(dtype).newbyteorder("="))
