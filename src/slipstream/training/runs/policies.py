"""Trained policies: the best of a run's members, and those exported by a study or run.

They are loaded, evaluated, and described from their own files.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.core.safe_io import read_json, schema_mismatch
from slipstream.core.storage import checkpoint
from slipstream.core.storage.provenance import commit_text
from slipstream.core.storage.status_file import LEDGER
from slipstream.core.text import percent, printable, stamp
from slipstream.kernels.spec import check_training_context, context_differences
from slipstream.rl.best_policies import BEST
from slipstream.rl.experience.running_mean_std import LIMIT
from slipstream.rl.nets.actions import ActionMap
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.policy_file import unpack
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.evaluator import (
    PolicyInput,
    count_episodes,
    lost_sentence,
    predict,
    run_episodes,
)
from slipstream.training.environments.factory import (
    DataWindow,
    frozen_settings,
    load_environment,
)
from slipstream.training.environments.parts import get_holdout_register
from slipstream.training.episode_result import EpisodeResult
from slipstream.training.evaluation_result import EvaluationResult
from slipstream.training.runs.run import CONFIG, PROVENANCE, Run
from slipstream.training.settings.config import RunConfig, read_config
from slipstream.training.settings.sizing import final_evaluator
from slipstream.training.settings.trust import check_trust

_ORDER = ("train_window", "train", "validation", "test", "window")
# Parts of the names of settings for the costs of orders and positions.
_COSTS = ("commission", "slippage", "spread", "swap", "fee", "cost", "interest", "funding")
_REMEDY = "Give the directory of a run, study or policy."


def evaluate_best(run: Run, environment: Environment, *, record: bool = True) -> EvaluationResult:
    """Evaluate every member's best policy on every split, in the order of time.

    Environments other than markets have only "test", new episodes that selected no policy: see
    `Environment.splits`. Results are deterministic and do not depend on the number of environments.

    Args:
        run: run with at least one best policy.
        environment: the run's own, or one of the same kind with other prices.
        record: store actions and traces.
    """
    policies = {member: run.best_policy(member) for member in run.best.present}
    get_holdout_register(environment).record_access(f"run {run.path}")
    return evaluate_policies(
        policies, run.config, environment, record=record, best_member=run.best.highest
    )


def evaluate_policies(
    policies: Mapping[int, Policy],
    config: RunConfig,
    environment: Environment,
    *,
    record: bool = True,
    best_member: int = 0,
) -> EvaluationResult:
    """Evaluate policies like the members of a run in `evaluate_best`.

    Args:
        policies: policies of one member each, by number of the member.
        config: evaluation settings and backend.
        environment, record: as for `evaluate_best`.
        best_member: member that validation selected.

    Raises:
        ConfigError: the environment's spaces differ from those of the policy.
    """
    known = environment.splits() if environment.spec.market is not None else ("test",)
    splits = [split for split in _ORDER if split in known]
    if {"train_window", "window"} & set(splits):
        splits.remove("train")  # random starts; the whole window is more informative
    tracks: dict[str, list[list[EpisodeResult]]] = {}
    for policy in policies.values():
        check_fit(policy, environment)
    for split in splits:
        with closing(final_evaluator(config, environment, split)) as evaluator:
            tracks[split] = [
                evaluator.run(policy, record=record)[0] for policy in policies.values()
            ]
            lost_text = lost_sentence(evaluator.drain_faults())
        if lost_text:
            print(lost_text, file=sys.stderr)
    independent = environment.spec.market is None
    return EvaluationResult.from_episodes(
        tracks, tuple(policies), best_member, independent=independent
    )


def check_fit(policy: Policy, environment: Environment) -> None:
    """Raise a ConfigError if the environment's spaces differ from those of the policy."""
    check_training_context(policy.training_context, environment.training_context)
    env_shape = environment.spec.observation_shape
    if env_shape != policy.observation_shape:
        raise ConfigError(
            f"The policy was trained on observations of shape {policy.observation_shape}, but "
            f"these prices have {env_shape}. Choose the same number of symbols and columns as in "
            "training."
        )
    policy_actions, theirs = (
        policy.actions.description(),
        ActionMap(environment.spec.action_space).description(),
    )
    if policy_actions != theirs:
        raise ConfigError(
            f"The policy has actions {policy_actions}, but this environment requires {theirs}. "
            "Choose settings with the same actions as in training."
        )


def sample_observations(
    policy: Policy, environment: Environment, most: int = 1_000
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Return observations of a policy acting in the first split, [n, *shape], and their masks.

    Args:
        policy: policy of one member.
        environment: its own, or one of the same kind.
        most: approximate number of rows.
    """
    check_fit(policy, environment)
    split, seen = environment.splits()[0], list[PolicyInput]()
    episodes = count_episodes(environment, split, most)
    num_envs = min(episodes, 8)
    env = environment.make_eval_envs(split, num_envs)

    def act(one: PolicyInput) -> NDArray[Any]:
        mask = None if one.mask is None else one.mask.copy()
        seen.append(PolicyInput(one.obs.copy(), mask, one.episode, one.step))
        return predict(policy, one, None)

    with closing(env):
        run_episodes(env, act, episodes, 0, num_envs=num_envs, steps=most // num_envs, record=False)
    masks = [inputs.mask for inputs in seen if inputs.mask is not None]
    return np.concatenate([inputs.obs for inputs in seen]), np.concatenate(masks) if masks else None


def data_mismatch(run: Run, environment: Environment) -> list[str]:
    """Return warnings about data that differ from the training data of the best policies."""
    trained = run.best_policy(run.best.present[0]).training_context
    same = "window" not in environment.splits()
    return context_differences(trained, environment.training_context, same_data=same)


@dataclass(frozen=True)
class DeployedPolicy:
    """A policy with its training config.

    Attributes:
        path: its folder.
        policy: policy of one member.
        config: config of its final training.
        metadata: origin: `study`, `trial`, `label`, `environment`, ...; for a policy exported by a
            run `environment` and `test`.
    """

    path: Path
    policy: Policy
    config: RunConfig
    metadata: Mapping[str, Any]

    @property
    def title(self) -> str:
        """The study's trial, else the name of the folder."""
        study = self.metadata.get("study")
        return self.path.name if study is None else f"{study}, trial {self.metadata.get('trial')}"

    @classmethod
    def open(cls, folder: Path, trust: bool = False) -> DeployedPolicy:
        """Load it from a folder.

        Raises:
            CheckpointError: damaged, or neither deployed by a study nor exported by a run.
            TrustError: untrusted code would run, and `trust` does not allow it.
        """
        tensors, manifest = checkpoint.load(folder)
        if not isinstance(manifest.get("run"), Mapping):
            raise CheckpointError(
                f"{folder} is a policy of a run's member, without its training config. Evaluate "
                "the run's directory, which has the config. `slipstream model-card RUN --out "
                "FOLDER` exports both."
            )
        policy_id = manifest.get("id")
        check_trust(
            folder, manifest["run"], trust, policy_id if isinstance(policy_id, str) else "-"
        )
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
        """Load the environment for its evaluation; arguments as for `DataWindow`.

        Raises:
            ConfigError: the study has used these bars and scored the policy on them itself.
        """
        known = self.policy.training_context
        if known.get("symbols") and (data is None or self._is_own(Path(data))):
            self._check_new(start)
        environment = load_environment(
            self.config.env_name,
            self.config.env_settings,
            DataWindow(data, symbols, start, stop, frozen_settings(self.metadata)),
        )
        digest = known.get("data_sha256")
        if digest is not None and environment.training_context.get("data_sha256") == digest:
            self._check_new(start)  # these are the same prices in another folder
        return environment

    def _is_own(self, folder: Path) -> bool:
        """Return whether a folder contains the study's own prices."""
        data_folder = (self.config.env_settings.get("data") or {}).get("folder")
        return (
            data_folder is not None
            and Path(data_folder).expanduser().resolve() == folder.expanduser().resolve()
        )

    def _check_new(self, start: int | None) -> None:
        """Raise if a window of the study's own prices begins before their end."""
        windows = (self.metadata.get("environment") or {}).get("windows_utc_seconds") or {}
        end = max((int(window[1]) for window in windows.values()), default=None)
        if start is not None and (end is None or start >= end):
            return
        new = "DATE" if end is None else _iso(end)
        known = "" if end is None else f"; bars from {new} (UTC) on are unseen"
        by = "study, on a hold-out that is opened once (see study.html)"
        if self.metadata.get("study") is None:
            by = "run, on a test split that loses value with every access (see the model card)"
        raise ConfigError(
            f"{self.path} was scored by its {by}{known}. Give other prices with `--data FOLDER`, "
            f"or newer bars of the same prices with `--from {new}`."
        )

    def evaluate(self, environment: Environment, *, record: bool = True) -> EvaluationResult:
        """Evaluate the policy on every split, see `evaluate_policies`."""
        get_holdout_register(environment).record_access(f"policy {self.path.absolute()}")
        return evaluate_policies({0: self.policy}, self.config, environment, record=record)

    def warnings(self, environment: Environment) -> list[str]:
        """Return warnings about data that differ from its training data."""
        return context_differences(self.policy.training_context, environment.training_context)


def forced_gate_warnings(facts: Mapping[str, Any]) -> list[str]:
    """Return warnings about forced gates from a policy's manifest, shown on every page of it."""
    warnings = ["The study recommended nothing; deployed by --force-deploy."]
    warnings *= bool(facts.get("forced"))
    for gate in facts.get("gates", ()):
        if gate["forced"] and not gate["passed"]:
            failed = f"The gate {gate['name']} failed ({gate['figure']}) and was forced"
            warnings.append(f"{failed}: {gate['forced']}")
    return warnings


def _check_facts(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raise a CheckpointError if the metadata of a policy is invalid."""
    known: dict[str, Any] = {"carried?": {}, "windows_utc_seconds?": {}}
    problem = schema_mismatch(
        manifest, {"policy": {}, "study?": str, "trial?": int, "environment?": known, "test?": {}}
    )
    facts = manifest.get("environment") if problem is None else None
    for name, window in ((facts or {}).get("windows_utc_seconds") or {}).items():
        problem = problem or schema_mismatch(window, [int], f"`{name}`")
        if problem is None and len(window) != 2:
            problem = f"`{name}` is not a valid window"
    if problem is not None:
        raise CheckpointError(f"{folder / checkpoint.MANIFEST} cannot be used: {problem}.")


def _iso(second: int) -> str:
    """Format a time as for `--from`: only the date at midnight UTC."""
    moment = datetime.fromtimestamp(second, UTC).replace(tzinfo=None)
    return moment.isoformat().removesuffix("T00:00:00")


def deployed_folder(path: Path) -> Path | None:
    """Return the folder of a study's deployed policy; None if the path is a run."""
    if (path / checkpoint.MANIFEST).is_file():
        return path
    if (path / LEDGER).is_file():
        if not (path / "policy" / checkpoint.MANIFEST).is_file():
            name = shlex.quote(str(path))
            force = f"slipstream resume {name} --force-deploy"
            why = (
                "it is complete and recommends nothing. `slipstream study status "
                f"{name}` shows why; `{force}` deploys its best candidate anyway"
                if (path / "result.json").is_file()
                else f"it is not complete. Continue with `slipstream resume {name}`"
            )
            raise CheckpointError(f"The study {path} has deployed no policy: {why}.")
        return path / "policy"
    return None


def policy_metadata(path: Path, member: int | None = None) -> dict[str, str]:
    """Return metadata of a policy by name, in display order.

    Args:
        path: a run (the best member's policy if `member` is None), a study, or a policy folder.

    Raises:
        CheckpointError: there is no policy, or it is damaged.
    """
    folder = deployed_folder(path)
    if folder is None:
        best = Run.open(path).best
        member = best.highest if member is None else member
        folder = best.folder_of(member)
        tensors, manifest = best.load(member)
    else:
        tensors, manifest = checkpoint.load(folder)
    policy = unpack(tensors, manifest.get("policy"))
    above = folder.absolute().parents[1 if folder.absolute().parent.name == BEST else 0]
    provenance = read_json(above / PROVENANCE, CheckpointError, _REMEDY) or {}
    config = manifest.get("run") or (
        read_config(above / CONFIG) if (above / CONFIG).is_file() else {}
    )
    facts = {"policy": str(folder), **dict(_network(policy, manifest["policy"], config))}
    facts |= dict(_training_context(policy.training_context))
    windows = ((provenance | manifest).get("environment") or {}).get("windows_utc_seconds") or {}
    if manifest.get("trained"):  # a deployment
        windows = {"training": manifest["trained"]}
    facts |= {f"{name} bars": " to ".join(map(stamp, span)) for name, span in windows.items()}
    facts |= dict(
        _scores(manifest, read_json(above / "result.json", CheckpointError, _REMEDY) or {})
    )
    facts |= dict(_origin(manifest, provenance))
    return facts


def _network(
    policy: Policy, own: Mapping[str, Any], config: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Describe agent, network, observations and actions."""
    agent = (config.get("agent") or {}).get("name")
    yield "agent", f"{agent or 'unknown'}, seed {own['seed']}, format {own['format']}"
    kind = own["network"]["kind"]
    activation = f", {policy.activation}" if kind == "mlp" else ""
    dueling = ", dueling" if policy.dueling else ""
    layers = " and ".join(map(str, policy.net_arch))
    yield "network", f"{kind} of {layers}{activation}{dueling}; head {policy.actions.head}"
    yield (
        "observation",
        f"{policy.native.observation_codec.requirement}; rows {own['observation']['shape']}",
    )
    yield "action", str(policy.actions.space(policy.actions.description()))
    yield "mask", "needed" if policy.native.masked else "none"
    if policy.scale is None:
        yield "scaler", "none: bytes divided by 255"
        return
    same = (policy.scale.mean == 0.0) & (policy.scale.inverse_std == 1.0)
    scaled, clipped = int((~same).sum()), np.isfinite(policy.scale.limit)
    bound = f"{int(clipped.sum())} clipped to +-{LIMIT:g}" if clipped.any() else "none clipped"
    yield "scaler", f"{scaled} of {same.size} columns, each by its own mean and deviation; {bound}"


def _training_context(known: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Describe the training data and trading rules."""
    words = {
        "environment": "environment",
        **{"bar_seconds": "bar length (s)", "symbols": "symbols"},
        **{"symbols_at_once": "symbols per env", "lookback": "bars observed", "fill": "fill"},
        **{"decide_every": "bars per decision", "warm_up_bars": "warm-up bars"},
        "data_sha256": "training data",
    }
    for key, name in words.items():
        if key in known:
            yield name, _words(known[key])
    for feature in known.get("features", ()):
        yield (
            f"feature {feature['name']}",
            _listed({k: v for k, v in feature.items() if k != "name"}),
        )
    settings = known.get("settings", {})
    costs = {key: settings[key] for key in settings if any(part in key for part in _COSTS)}
    for name, chosen in (
        ("costs", costs),
        ("settings", {k: settings[k] for k in settings if k not in costs}),
    ):
        if chosen:
            yield name, _listed(chosen)


def _listed(values: Mapping[str, Any]) -> str:
    """Format nested values by dotted name."""
    parts = [
        _listed({f"{name}.{key}": one for key, one in value.items()})
        if isinstance(value, Mapping) and value
        else f"{name} {_words(value)}"
        for name, value in values.items()
    ]
    return ", ".join(parts)


def _words(value: Any) -> str:
    """Format a plain value without Python's brackets and quotes."""
    if value is None or value in ([], {}):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(_words, value)) if isinstance(value, list) else str(value)


def _scores(own: Mapping[str, Any], result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Describe the scores that selected the policy and those measured afterwards."""
    if "score" in own:
        test = own.get("test") or {}  # an exported policy
        what = test.get("score_is") or result.get("score_is", "score")
        yield (
            "chosen by",
            f"{what} {own['score']:.6g} on {own['split']}, after {own['steps']:,} steps",
        )
        for one in result.get("members", ()):
            if one.get("member") == own.get("member") and one.get("test_score") is not None:
                yield "test", f"{what} {one['test_score']:.6g} on {result.get('test_is')}"
        if isinstance(test.get("score"), float):
            yield "test", f"{what} {test['score']:.6g} on {test.get('test_is')}"
        return
    for key, name in (("label", "chosen by"), ("trial", "trial")):
        if own.get(key) is not None:
            yield name, str(own[key])
    if own.get("overrides"):
        yield "found", _listed(own["overrides"])
    if own.get("forced"):
        yield "recommended", "no: it was deployed by force"
    for gate in own.get("gates", ()):
        forced = f"; forced: {gate['forced']}" if gate["forced"] and not gate["passed"] else ""
        word = "passed" if gate["passed"] else "FAILED"
        yield f"gate {gate['name']}", f"{word}, {gate['figure']}{forced}"
    for one in (result.get("confirmation") or {}).get("candidates", ()):
        if one.get("trial") == own.get("trial") and "value" in one:
            # A ratio over few days has no bound.
            bound = f", lower bound {one['lcb']:.6g}" if "lcb" in one else ""
            yield "confirmation", f"{result.get('objective')} {one['value']:.6g}{bound}"
    holdout = result.get("holdout") or {}
    if holdout.get("mean") is not None:
        yield "hold-out", f"{result.get('objective')} {holdout['mean']:.6g}, mean of its seeds"
    if holdout.get("mean_return") is not None:
        yield "hold-out", f"{percent(holdout['mean_return'])}, mean of its seeds"


def _origin(own: Mapping[str, Any], made: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Describe version, time and machine of origin."""
    yield "hash", str(own["policy"]["hash"])
    yield "written by", f"slipstream {own['policy']['slipstream']}"
    for key, name in (("study", "study"), ("id", "id")):
        if key in own or key in made:
            yield name, str(own.get(key, made.get(key)))
    for key in ("command", "started"):
        if key in made:
            yield key, printable(str(made[key]))
    if commit := commit_text((made.get("git") or {}).get("slipstream")):
        yield "commit", printable(commit)
