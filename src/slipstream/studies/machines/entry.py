"""What a machine must have to join a study: the same slipstream, the same files."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import slipstream
from slipstream.core.config import validate
from slipstream.core.discover import list_kernels
from slipstream.core.errors import CheckpointError, ConfigError, DataError
from slipstream.market.folds import FoldPlan
from slipstream.studies.engine.source import EnvironmentSource
from slipstream.studies.machines.wire import FORMAT, Copies, pack, unpack
from slipstream.training import provenance
from slipstream.training.config import RunConfig
from slipstream.training.environment import Environment

_DECIDING = ("slipstream", "torch", "numba", "numpy", "TA-Lib")  # libraries that make numbers


@dataclass(frozen=True)
class Entry:
    """What an owner says of its study.

    Attributes:
        config: the base config, as a mapping.
        folds: the plan, as a mapping.
        fold_seeds: folds of an environment without prices.
        market: sha256 of the prices; None: there are none.
        kernel: sha256 of the environment's file, where it is a user's; else None.
        versions: of the libraries that decide numbers.
        code: sha256 of slipstream's own files.
        host, process, processor: of the owner.
    """

    config: Mapping[str, Any]
    folds: Mapping[str, Any]
    fold_seeds: int
    market: str | None
    kernel: str | None
    versions: Mapping[str, Any]
    code: str
    host: str
    process: int
    processor: str

    @property
    def env(self) -> str:
        """The owner's name of the environment."""
        return str(self.config["env"]["name"])

    @property
    def folder(self) -> str | None:
        """The owner's folder of prices."""
        data = self.config["env"].get("data")
        folder = data.get("folder") if isinstance(data, Mapping) else None
        return None if folder is None else str(folder)

    def parcel(self) -> bytes:
        """As it is announced."""
        return pack({"format": FORMAT, **self.__dict__})

    @classmethod
    def read(cls, content: bytes) -> Entry:
        """What was announced.

        Raises:
            CheckpointError: it is damaged.
            ConfigError: another version announced it.
        """
        facts, _ = unpack(content)
        try:
            number = facts.pop("format")
            if number == FORMAT:
                found = cls(**facts)
                found.env.encode()
                return found
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"A parcel in the database announces no study: {error!r}"
            ) from error
        raise ConfigError(
            f"The study's owner speaks format {number}, this slipstream {FORMAT}: install the same "
            "version on all machines."
        )


def entry_of(base: RunConfig, folds: FoldPlan, fold_seeds: int, facts: Mapping[str, Any]) -> Entry:
    """What this process says of its study.

    Args:
        base: its config.
        folds, fold_seeds: how it is divided.
        facts: of its environment, see `Loaded.provenance`.
    """
    return Entry(
        config=base.as_mapping(),
        folds=folds.model_dump(mode="json"),
        fold_seeds=fold_seeds,
        market=facts.get("market_sha256"),
        kernel=_file_hash(base.env_name),
        versions=_versions(),
        code=_code_hash(),
        host=platform.node(),
        process=os.getpid(),
        processor=provenance.processor(),
    )


class Premises:
    """What this machine has of a study: where its files are, and its environments.

    Args:
        entry: of the study.
        data_dir: this machine's folder of prices; None: where the owner's is.
        env: this machine's kernel file, or ``gym:ID``; None for slipstream's own environments.

    Attributes:
        copies: names here and at the owner's.
        source: of environments, by the owner's configs.
        base: the study's base config.

    Raises:
        ConfigError: another version, or an environment that the user of this machine must name.
        DataError: other prices, or none.
    """

    def __init__(self, entry: Entry, data_dir: str | None, env: str | None) -> None:
        _check_versions(entry)
        own_folder = (
            entry.folder if data_dir is None else str(Path(data_dir).expanduser().resolve())
        )
        if data_dir is not None and entry.folder is None:
            raise ConfigError(f"{entry.env} reads no folder of prices: leave --data-dir out.")
        self.copies = Copies(entry.env, _own_env(entry, env), entry.folder, own_folder)
        self.base = self.copies.resolve(entry.config)
        folds = validate(FoldPlan, dict(entry.folds), "study.folds")
        self.source: EnvironmentSource = _MovedSource(folds, entry.fold_seeds, self.copies)
        try:
            environment = self.source.environment(self.base)
        except DataError as error:
            if data_dir is not None:
                raise
            raise DataError(
                f"{error} The study's owner, {entry.host}, has its prices there: name the folder "
                "of the same files on this machine with --data-dir."
            ) from error
        own = environment.provenance.get("market_sha256")
        if own != entry.market:
            raise DataError(
                f"The prices in {own_folder} are not those of the study: their sha256 is {own}, "
                f"that of {entry.host} is {entry.market}. Copy its folder {entry.folder}, and name "
                "the copy with --data-dir."
            )


class _MovedSource(EnvironmentSource):
    """Environments by the owner's configs, loaded from this machine's files."""

    def __init__(self, plan: FoldPlan, fold_seeds: int, copies: Copies) -> None:
        super().__init__(plan, fold_seeds)
        self._copies = copies

    def environment(self, config: RunConfig) -> Environment:
        return super().environment(self._copies.own(config))


def _own_env(entry: Entry, env: str | None) -> str:
    """This machine's name of the environment.

    A database must not choose which files are imported here: what is not slipstream's own is named
    by the user of this machine.
    """
    if entry.env in list_kernels() and env in (None, entry.env):
        return entry.env
    if env is None:
        raise ConfigError(
            f"The study's environment is {entry.env}, which is not one of slipstream's own: say "
            "with --env which file (or gym:ID) it is on this machine."
        )
    if entry.kernel is None:
        if env != entry.env:
            raise ConfigError(f"The study's environment is {entry.env}, not {env}.")
        return env
    own = str(Path(env).expanduser().resolve())
    found = _file_hash(own)
    if found != entry.kernel:
        raise ConfigError(
            f"{own} is not the study's environment: its sha256 is {found}, that of {entry.env} on "
            f"{entry.host} is {entry.kernel}. Copy that file."
        )
    return own


def _check_versions(entry: Entry) -> None:
    own, theirs = _versions(), entry.versions
    changed = [
        f"{name} {own[name]} where the owner has {theirs.get(name)}"
        for name in own
        # Without torch a machine trains what needs none; it refuses the rest by itself.
        if own[name] != theirs.get(name) and (name != "torch" or name in theirs)
    ]
    if changed:
        raise ConfigError(
            f"This machine has {', '.join(changed)} ({entry.host}): other versions may give other "
            "bits. Install the same ones."
        )
    if _code_hash() != entry.code:
        raise ConfigError(
            f"The files of slipstream {own['slipstream']} on this machine are not those of "
            f"{entry.host}: install the same ones, and start the study again if they were edited "
            "since it was started."
        )


def _versions() -> dict[str, Any]:
    found = provenance.versions()
    return {name: found[name] for name in _DECIDING if name in found}


def _code_hash() -> str:
    """Of all source files, in the order of their names."""
    root = Path(slipstream.__file__).parent
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root).as_posix()}\n".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def _file_hash(env: str) -> str | None:
    path = Path(env)
    if not (env.endswith(".py") and path.is_file()):
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()
