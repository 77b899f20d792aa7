"""Deployment: a policy under a name, in versions of which one is current, and what let it in.

::

    deployments/NAME/versions/N/   the policy; its manifest holds config, frozen inference, gates
    deployments/NAME/current       the number of the version in force, replaced at once
    deployments/NAME/accounts/N/   the paper account of that version
    deployments/NAME/audit.jsonl   what was done when; every line holds the hash of the one before
    deployments/NAME/status.json   where the paper account's process stands; events.jsonl, log.txt
"""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.core.reader import UnreadableError, content, is_there
from slipstream.core.storage import checkpoint, provenance, register
from slipstream.core.storage.files import (
    AppendedFile,
    make_folder,
    plain,
    take_lock,
    write_bytes,
    write_json,
    write_text,
)
from slipstream.core.storage.status import AUDIT, CURRENT, DEPLOYMENT, DEPLOYMENTS, version_in_force
from slipstream.core.text import printable
from slipstream.markets.data.bars import Bars
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.market import load_market
from slipstream.markets.live.account import BARS, JOURNAL
from slipstream.markets.live.journal import Journal
from slipstream.markets.live.ranges import Ranges
from slipstream.markets.live.store import Shape
from slipstream.markets.live.training_prices import TrainingPrices
from slipstream.rl.nets.policy_file import unpack
from slipstream.studies.record.status import VERSIONS, lookup
from slipstream.training.environments.environment import Environment, PriceWindow
from slipstream.training.environments.factory import carried_settings, kind_of
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.runs.policies import DeployedPolicy, deployed_folder
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import RunConfig

if TYPE_CHECKING:
    from slipstream.markets.live.gates import Gate

ACCOUNTS = "accounts"
NOT_SWITCHED = "not switched"  # event of the audit: the line before it was not followed
_LONGEST_NAME = 100


@dataclass(frozen=True)
class Deployment:
    """A name's folder.

    Attributes:
        path: absolute.
    """

    path: Path

    @classmethod
    def of(cls, name: str | Path) -> Deployment:
        """``deployments/NAME``, or the folder itself where a path is given.

        Raises:
            ConfigError: a name that cannot be a folder's.
        """
        path, text = Path(name), str(name)
        odd = not path.name.isprintable() or len(path.name) > _LONGEST_NAME
        if not path.name or path.name.startswith((".", "-")) or odd:
            raise ConfigError(
                f"{printable(text[:40])!r} cannot be a deployment's name: use letters, digits, "
                "dots, dashes and underscores."
            )
        if len(path.parts) == 1:
            path = Path(DEPLOYMENTS) / path
        return cls(path.expanduser().absolute())

    @classmethod
    def open(cls, name: str | Path) -> Deployment:
        """Open an existing one; a name not below ``./deployments`` is looked up in the register.

        Raises:
            CheckpointError: there is none, or several have that name.
        """
        found = cls.of(name)
        if not found.exists:
            found = cls(register.place_of(name, DEPLOYMENT) or found.path)
        if not found.exists:
            names = sorted(one.parent.name for one in found.path.parent.glob(f"*/{CURRENT}"))
            known = f"those there: {', '.join(names)}" if names else "there is none there"
            raise CheckpointError(
                f"There is no deployment {found.path.name} in {found.path.parent}; {known}. Make "
                f"one with `slipstream deploy STUDY --as {shlex.quote(found.path.name)}`."
            )
        return found

    @property
    def exists(self) -> bool:
        """Whether a version is in force."""
        return is_there(self.path / CURRENT)

    @property
    def current(self) -> int:
        """Number of the version in force; 0 before the first."""
        return version_in_force(self.path)

    @property
    def versions(self) -> list[int]:
        """Numbers of those that are whole, ascending."""
        found = (self.path / VERSIONS).glob(f"*/{checkpoint.MANIFEST}")
        return sorted(int(one.parent.name) for one in found if one.parent.name.isdigit())

    def version(self, number: int) -> Path:
        """The folder of a version's policy, which `slipstream evaluate` takes, too."""
        return self.path / VERSIONS / str(number)

    def account(self, number: int) -> Path:
        """The folder of a version's paper account."""
        return self.path / ACCOUNTS / str(number)

    def policy(self, trust: bool = False) -> DeployedPolicy:
        """That of the version in force."""
        return DeployedPolicy.open(self.version(self.current), trust)

    def kept_bars(self) -> tuple[Path, int]:
        """Folder of the bars of the account in force, and the first moment decided on.

        Raises:
            CheckpointError: it has decided on nothing yet.
        """
        folder, first = self.account(self.current), None
        if (folder / JOURNAL).is_file():
            with closing(Journal(folder / JOURNAL)) as journal:
                first = journal.first()
        if first is None:
            raise CheckpointError(
                f"The account of {self.path.name} has decided on nothing yet: lead it with "
                f"`slipstream paper {shlex.quote(self.path.name)} --feed replay:DIR`, or tail:FILE."
            )
        return folder / BARS, first

    @property
    def before(self) -> int:
        """The last other version that was in force, by the audit; 0 where there was none."""
        forced = list[int]()
        for line in self.audit():
            if line["event"] == NOT_SWITCHED:
                forced.pop()
            forced.append(line["to"])
        if forced and forced[-1] != self.current:  # a kill between the line and the switch
            forced.pop()
        return next((one for one in reversed(forced) if one != self.current), 0)

    def switch(self, number: int, event: str, **facts: Any) -> None:
        """Puts a version in force, after a line of the audit says so.

        Raises:
            ConfigError: there is no such version.
        """
        if number not in self.versions:
            listed = ", ".join(map(str, self.versions)) or "none"
            which = number or "before its first"
            raise ConfigError(
                f"{self.path.name} has no version {which}: it has {listed}. Name one with --to."
            )
        done = self.audit()
        if done and done[-1]["to"] != self.current:  # a kill between the line and the switch
            self.note(NOT_SWITCHED, self.current, {})
        self.note(event, number, facts)
        write_text(self.path / CURRENT, f"{number}\n")

    def audit(self) -> list[dict[str, Any]]:
        """Every line, oldest first.

        Raises:
            CheckpointError: a line was changed or taken away.
        """
        found, before = [], ""
        for number, line in enumerate(self._lines(), 1):
            try:
                facts = json.loads(line)
                broken = facts["previous"] != before
            except (ValueError, KeyError, TypeError):
                broken = True
            if broken:
                raise CheckpointError(
                    f"{self.path / AUDIT} was changed: line {number} does not follow from the one "
                    "before it. Bring back the file of before."
                )
            before = hashlib.sha256(line).hexdigest()
            found.append(facts)
        return found

    def _lines(self) -> list[bytes]:
        path = self.path / AUDIT
        try:
            return content(path).split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        except UnreadableError as error:
            raise CheckpointError(
                f"{path} cannot be read: {error}. Bring back the file of before."
            ) from error

    def note(self, event: str, to: int, facts: Mapping[str, Any]) -> None:
        """Appends a line; one that a kill left unfinished is taken away first."""
        path, lines = self.path / AUDIT, self._lines()
        whole = b"".join(line + b"\n" for line in lines)
        if path.is_file() and path.stat().st_size != len(whole):
            write_bytes(path, whole)
        before = hashlib.sha256(lines[-1]).hexdigest() if lines else ""
        said = {"time": time.time(), "event": event, "to": to, **facts, "previous": before}
        with closing(AppendedFile(path)) as file:
            file.write(json.dumps(plain(said)).encode() + b"\n")
            file.sync()


def deploy(
    source: str | Path,
    name: str,
    force: Mapping[str, str],
    *,
    better: Callable[[DeployedPolicy], str] | None = None,
    say: Callable[[str], None] = lambda sentence: None,
    trust: bool = False,
) -> Deployment:
    """Makes the policy of a study or run the version in force under a name.

    Args:
        source: name or folder of a study or a run, or a policy's folder.
        name: of the deployment, below ./deployments.
        force: gates that may fail, and why.
        better: asked once all gates are passed: says what the policy is preferred for, or raises.
        say: told how every gate went.
        trust: as for `slipstream evaluate`.

    Raises:
        ConfigError: a gate fails that nobody forced; the policy trades no prices of files.
    """
    from slipstream.markets.live.gates import (
        judged,  # pages and studies, which an account never needs
    )

    path = Path(source).expanduser()
    path = path if is_there(path / checkpoint.MANIFEST) else lookup(path)[0]
    tensors, facts = _source(path, trust)
    section = facts["run"]["env"]
    data = section.get("data")
    if not isinstance(data, Mapping) or "features" not in facts["policy"]["conditions"]:
        raise ConfigError(
            f"{path} was trained on {section.get('name')}, which reads no price files or declares "
            "no features: only a policy of forex, portfolio or another market that declares both "
            "can be deployed."
        )
    found = Deployment.of(name)
    make_folder(found.path / VERSIONS)
    with take_lock(found.path, f"Another process deploys {name}: wait for it."):
        number = max(found.versions, default=0) + 1
        whole = _bars(facts)
        shape, bars = _shape(whole, data)
        store = shape.section(found.account(number) / BARS)
        run = {**facts["run"], "env": {**section, "data": store}}
        feed = {key: value for key, value in data.items() if key not in ("folder", "symbols")}
        made = {**facts, "run": run, "feed": feed, "shape": shape._asdict()}
        config = RunConfig.from_mapping(run)
        new = DeployedPolicy(path, unpack(tensors, facts["policy"]), config, made)
        trained = _bars(facts, *facts["trained"]) if facts["trained"] else whole
        ranges = Ranges.seen(trained)
        made["ranges"] = {name: one.tolist() for name, one in ranges._asdict().items()}
        until = facts["trained"][1] if facts["trained"] else None
        made["training_prices"] = {
            one.symbol: TrainingPrices.from_bars(one, until).facts()
            for one in bars[: len(shape.symbols)]
        }
        gates = judged(new, shape, bars)
        _pass(gates, force, say)
        told = [{**gate._asdict(), "forced": force.get(gate.name)} for gate in gates]
        why = {} if better is None else {"why": better(new)}
        checkpoint.save(found.version(number), tensors, {**made, "gates": told})
        if not is_there(found.path / register.PROVENANCE):
            write_json(found.path / register.PROVENANCE, provenance.describe())
            register.enter(found.path, DEPLOYMENT, str(section["name"]), say)
        found.switch(number, "deploy", source=str(path.absolute()), gates=told, **why)
    return found


def _source(path: Path, trust: bool) -> tuple[checkpoint.Tensors, dict[str, Any]]:
    """A policy's tensors, and what its version must know: nothing else of the source is needed."""
    folder = deployed_folder(path)
    if folder is not None:
        DeployedPolicy.open(folder, trust)  # refuses what cannot be used
        tensors, manifest = checkpoint.load(folder)
        environment = manifest.get("environment") or {}
        known = ("study", "id", "trial", "label", "promoted", "policy", "run")
        kept = {key: manifest[key] for key in known if manifest.get(key) is not None}
    else:
        run = Run.open(path, trust=trust)
        member = run.best.highest
        tensors, manifest = run.best.load(member)
        environment = run.provenance.get("environment") or {}
        kept = {"policy": manifest["policy"], "run": run.config.as_mapping()}
        kept |= {"id": run.provenance.get("id"), "label": f"member {member} of {path.name}"}
    windows = environment.get("windows_utc_seconds") or {}
    # Windows would forbid to score the deployment on bars of its own folder: they are told apart.
    kept["environment"] = {"carried": carried_settings({"environment": environment})}
    kept["trained"] = windows.get("train") or windows.get("development")
    kept["trained_until"] = max((int(window[1]) for window in windows.values()), default=None)
    return tensors, kept


def _bars(
    facts: Mapping[str, Any], start: int | None = None, stop: int | None = None
) -> KernelEnvironment:
    """The bars of the source, or those of a part of them, as one window."""
    section = dict(facts["run"]["env"])
    name = str(section.pop("name"))
    window = PriceWindow(start=start, stop=stop, carried=carried_settings(facts))
    found = kind_of(name).load_window(section, window).part(KernelEnvironment)
    assert found is not None
    return found


def _shape(environment: Environment, data: Mapping[str, Any]) -> tuple[Shape, list[Bars]]:
    """Return what inference found, to be frozen, and the bars of all its symbols."""
    known, facts = environment.conditions, environment.provenance
    symbols = tuple(known["symbols"])
    pairs = (facts.get("converted_by") or {}).values()
    converting = sorted({pair for pair in pairs if pair is not None and pair not in symbols})
    chosen = {**data, "symbols": list(symbols)}
    market = load_market(DataConfig.model_validate(chosen))
    extra = tuple(one["column"] for one in known["features"] if "column" in one)
    found = (symbols, tuple(converting), market.bar_seconds, market.kind, extra, data["market"])
    others = {**data, "symbols": converting}
    more = load_market(DataConfig.model_validate(others)).bars if converting else ()
    return Shape(*found), [*market.bars, *more]


def _pass(gates: Sequence[Gate], force: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Says how each gate went.

    Raises:
        ConfigError: one failed that nobody forced, or none has that name.
    """
    names = [gate.name for gate in gates]
    for name in force:
        if name not in names:
            raise ConfigError(f"--force {name}: there is no such gate, but {', '.join(names)}.")
    for gate in gates:
        forced = "" if gate.passed or gate.name not in force else f"; forced: {force[gate.name]}"
        say(f"{'passed' if gate.passed else 'FAILED'}  {gate.name}: {gate.figure}{forced}")
    failed = [gate.name for gate in gates if not gate.passed and gate.name not in force]
    if failed:
        options = " ".join(f"--force {name}" for name in failed)
        raise ConfigError(
            f"Nothing was deployed: {', '.join(failed)} failed. What a study has not shown, a "
            f'deployment does not claim; `{options} --reason "..."` deploys it all the same, and '
            "every page says so."
        )
