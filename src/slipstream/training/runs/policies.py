"""Trained policies and how they do: the best of a run's members, and the one a study deployed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipstream.core.conditions import check_conditions, differences
from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.core.reader import misfit
from slipstream.core.storage import checkpoint
from slipstream.core.storage.status import LEDGER
from slipstream.rl.nets.actions import ActionMap
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.policy_file import unpack
from slipstream.training.environments.environment import Environment, PriceWindow
from slipstream.training.environments.episodes import (
    Seen,
    count_episodes,
    lost_sentence,
    run_episodes,
)
from slipstream.training.environments.evaluation import Evaluator, decide
from slipstream.training.environments.factory import carried_settings, chosen_environment
from slipstream.training.runs.holdout import register_of
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import RunConfig
from slipstream.training.settings.sizing import EvaluationPlan
from slipstream.training.settings.trust import check_trust
from slipstream.training.track import Track

Tracks: TypeAlias = Mapping[str, list[list[Track]]]
"""Evaluation episodes by split, then by member that has a policy, then by episode."""

_ORDER = ("train_window", "train", "validation", "test", "window")


def evaluate_best(run: Run, environment: Environment, *, record: bool = True) -> Tracks:
    """Runs every member's best policy through every split, in the order of time.

    What is no market gives "test" alone, fresh episodes that chose no policy: see
    `Environment.splits`. Deterministic: equal however many copies evaluate.

    Args:
        run: has at least one best policy.
        environment: the run's own, or one of the same kind with other prices.
        record: keep actions and traces.
    """
    policies = [best_policy(run, member) for member in run.best.present]
    register_of(environment).record_access(f"run {run.path}")
    return evaluate_policies(policies, run.config, environment, record=record)


def evaluate_policies(
    policies: Sequence[Policy],
    config: RunConfig,
    environment: Environment,
    *,
    record: bool = True,
) -> Tracks:
    """Runs policies at hand, each in the place of a member, as `evaluate_best` does a run's.

    Args:
        policies: each of one member.
        config: how they are evaluated, and the backend.
        environment, record: as for `evaluate_best`.

    Raises:
        ConfigError: the environment means something else to a policy than what it was trained on.
    """
    settings, plan = config.evaluation, EvaluationPlan.of(config, environment)
    market = environment.spec.market is not None
    splits = [split for split in _ORDER if split in environment.splits()] if market else ["test"]
    if {"train_window", "window"} & set(splits):
        splits.remove("train")  # random starts: the whole window says more
    tracks: dict[str, list[list[Track]]] = {}
    for policy in policies:
        check_fit(policy, environment)
    for split in splits:
        evaluator = Evaluator(
            environment,
            split,
            games=plan.final,
            seed=settings.seed if market else settings.test_seed,
            backend=config.training.chosen_backend,
            longest=plan.longest,
            drawn=settings.drawn,
        )
        with closing(evaluator):
            tracks[split] = [evaluator.run(policy, record=record)[0] for policy in policies]
            said = lost_sentence(evaluator.drain_faults())
        if said:
            print(said, file=sys.stderr)
    return tracks


def check_fit(policy: Policy, environment: Environment) -> None:
    """Refuses data that mean something else to the policy than what it was trained on."""
    check_conditions(policy.conditions, environment.conditions)
    here = environment.spec.observation_shape
    if here != policy.observation_shape:
        raise ConfigError(
            f"The policy was trained on observations of shape {policy.observation_shape}, and "
            f"these prices make {here}: choose as many symbols, with the same columns, as in "
            "training."
        )
    own, theirs = policy.actions.description(), ActionMap(environment.spec.action).description()
    if own != theirs:
        raise ConfigError(
            f"The policy acts in {own}, and this environment takes {theirs}: choose settings that "
            "give the same actions as in training."
        )


def best_policy(run: Run, member: int) -> Policy:
    """The policy that validation chose for a member."""
    tensors, manifest = run.best.load(member)
    return unpack(tensors, manifest.get("policy"))


def seen_rows(
    policy: Policy, environment: Environment, most: int = 1_000
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Rows that a policy meets as it acts in the first split, [n, *shape], and their masks.

    Args:
        policy: of one member.
        environment: its own, or one of the same kind.
        most: rows, about.
    """
    check_fit(policy, environment)
    split, seen = environment.splits()[0], list[Seen]()
    episodes = count_episodes(environment, split, most)
    copies = min(episodes, 8)
    env = environment.evaluation(split, copies)

    def act(one: Seen) -> NDArray[Any]:
        mask = None if one.mask is None else one.mask.copy()
        seen.append(Seen(one.obs.copy(), mask, one.episode, one.step))
        return decide(policy, one, None)

    with closing(env):
        run_episodes(env, act, episodes, 0, lanes=copies, steps=most // copies, record=False)
    masks = [one.mask for one in seen if one.mask is not None]
    return np.concatenate([one.obs for one in seen]), np.concatenate(masks) if masks else None


def other_data(run: Run, environment: Environment) -> list[str]:
    """Sentences about data that the best policies were not trained on, and yet act on here."""
    trained = best_policy(run, run.best.present[0]).conditions
    same = "window" not in environment.splits()
    return differences(trained, environment.conditions, same_data=same)


@dataclass(frozen=True)
class DeployedPolicy:
    """A policy with the config that it was trained under.

    Attributes:
        path: its folder.
        policy: of one member.
        config: of its final training.
        facts: where it comes from: `study`, `trial`, `label`, `environment`, ...; of a run's, that
            was handed on, `environment` and `test`.
    """

    path: Path
    policy: Policy
    config: RunConfig
    facts: Mapping[str, Any]

    @property
    def title(self) -> str:
        """The study's trial, else the name of the folder."""
        study = self.facts.get("study")
        return self.path.name if study is None else f"{study}, trial {self.facts.get('trial')}"

    @classmethod
    def open(cls, folder: Path, trust: bool = False) -> DeployedPolicy:
        """Reads it.

        Raises:
            CheckpointError: damaged, or neither deployed by a study nor handed on by a run.
            TrustError: code of somebody else's would run, and `trust` does not allow it.
        """
        tensors, manifest = checkpoint.load(folder)
        if not isinstance(manifest.get("run"), Mapping):
            raise CheckpointError(
                f"{folder} is a policy without the config that it was trained under: one of a "
                "run's members. Evaluate the run's directory, which has the config; `slipstream "
                "card RUN --out FOLDER` writes both into a folder to hand on."
            )
        made = manifest.get("id")
        check_trust(folder, manifest["run"], trust, made if isinstance(made, str) else "-")
        _check_facts(folder, manifest)
        config = RunConfig.from_mapping(manifest["run"])
        return cls(folder, unpack(tensors, manifest.get("policy")), config, manifest)

    def environment(
        self,
        data: str | Path | None = None,
        symbols: Sequence[str] | None = None,
        start: int | None = None,
        stop: int | None = None,
    ) -> Environment:
        """What it is scored on; arguments as for `PriceWindow`.

        Raises:
            ConfigError: bars that the study has used, which scored them itself.
        """
        known = self.policy.conditions
        if known.get("symbols") and (data is None or self._is_own(Path(data))):
            self._check_new(start)
        found = chosen_environment(
            self.config.env_name,
            self.config.env_settings,
            PriceWindow(data, symbols, start, stop, carried_settings(self.facts)),
        )
        digest = known.get("data_sha256")
        if digest is not None and found.conditions.get("data_sha256") == digest:
            self._check_new(start)  # the same prices in another folder
        return found

    def _is_own(self, folder: Path) -> bool:
        """Whether these are the study's own prices, named again."""
        own = (self.config.env_settings.get("data") or {}).get("folder")
        return own is not None and Path(own).expanduser().resolve() == folder.expanduser().resolve()

    def _check_new(self, start: int | None) -> None:
        """Refuses a window of the study's own prices that begins before these end."""
        windows = (self.facts.get("environment") or {}).get("windows_utc_seconds") or {}
        end = max((int(window[1]) for window in windows.values()), default=None)
        if start is not None and (end is None or start >= end):
            return
        new = "DATE" if end is None else _iso(end)
        known = "" if end is None else f"; bars from {new} (UTC) on are new to it"
        by = "study, on a hold-out that is opened once: see study.html"
        if self.facts.get("study") is None:
            by = "run, on a split that every look makes less of a proof: see its card"
        raise ConfigError(
            f"{self.path} was scored by its {by}{known}. Give other prices with `--data FOLDER`, "
            f"or newer bars of the same ones with `--from {new}`."
        )

    def evaluate(self, environment: Environment, *, record: bool = True) -> Tracks:
        """Its tracks by split, as `evaluate_policies` returns them."""
        register_of(environment).record_access(f"policy {self.path.absolute()}")
        return evaluate_policies([self.policy], self.config, environment, record=record)

    def remarks(self, environment: Environment) -> list[str]:
        """Sentences about data that it was not trained on, and yet acts on here."""
        return differences(self.policy.conditions, environment.conditions)


def forced_sentences(facts: Mapping[str, Any]) -> list[str]:
    """What a policy was deployed in spite of, from its manifest; every page of it says so."""
    found = ["The study recommended nothing; deployed by --force-deploy."]
    found *= bool(facts.get("forced"))
    for gate in facts.get("gates", ()):
        if gate["forced"] and not gate["passed"]:
            failed = f"The gate {gate['name']} failed ({gate['figure']}) and was forced"
            found.append(f"{failed}: {gate['forced']}")
    return found


def _check_facts(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Refuses facts that neither a study nor a run writes beside a policy."""
    known: dict[str, Any] = {"carried?": {}, "windows_utc_seconds?": {}}
    problem = misfit(
        manifest, {"policy": {}, "study?": str, "trial?": int, "environment?": known, "test?": {}}
    )
    facts = manifest.get("environment") if problem is None else None
    for name, window in ((facts or {}).get("windows_utc_seconds") or {}).items():
        problem = problem or misfit(window, [int], f"`{name}`")
        if problem is None and len(window) != 2:
            problem = f"`{name}` is no window"
    if problem is not None:
        raise CheckpointError(f"{folder / checkpoint.MANIFEST} cannot be used: {problem}.")


def _iso(second: int) -> str:
    """A moment as `--from` takes it: the date alone at midnight UTC."""
    moment = datetime.fromtimestamp(second, UTC).replace(tzinfo=None)
    return moment.isoformat().removesuffix("T00:00:00")


def deployed_folder(path: Path) -> Path | None:
    """The folder of a study's deployable policy that a path means; None where it means a run."""
    if (path / checkpoint.MANIFEST).is_file():
        return path
    if (path / LEDGER).is_file():
        if not (path / "policy" / checkpoint.MANIFEST).is_file():
            name = shlex.quote(str(path))
            force = f"slipstream resume {name} --force-deploy"
            why = (
                "it is complete and recommends nothing. `slipstream study status "
                f"{name}` says why; `{force}` deploys its best candidate all the same"
                if (path / "result.json").is_file()
                else f"it is not complete. Go on with `slipstream resume {name}`"
            )
            raise CheckpointError(f"The study {path} has deployed no policy: {why}.")
        return path / "policy"
    return None
