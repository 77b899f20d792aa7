"""Deployment gates: a policy becomes the current version if it passes all gates.

A gate is a required result with its figure. The first four are measured by the study. The fifth
replays the hold-out with three times the costs. The last one sends past bars through the live code.
A gate that was not computed fails.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from slipstream.core.errors import ConfigError, DataError, SlipstreamError
from slipstream.core.safe_io import path_exists
from slipstream.core.storage import checkpoint, folder_registry, provenance
from slipstream.core.storage.atomic_io import acquire_lock, make_folder, write_json
from slipstream.core.storage.status_file import DEPLOYMENT, LEDGER
from slipstream.core.timeline import DAY, HOLDOUT
from slipstream.markets.data.bars import Bars
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.market import load_market
from slipstream.markets.evaluation.market_backtest import MarketBacktest, replay
from slipstream.markets.live.bar_store import BarSchema
from slipstream.markets.live.deployment import Deployment
from slipstream.markets.live.drift import FeatureRanges, TrainingPrices
from slipstream.markets.live.paper_account import BARS
from slipstream.markets.live.price_replay import replay_passes
from slipstream.report.study.study_view import daily_returns, study_environment
from slipstream.rl.nets.policy_file import unpack
from slipstream.studies.outcome.outcome_text import describe_promotion
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.inspection import VERSIONS, lookup
from slipstream.studies.statistics.overfitting import MAX_PBO, MIN_DSR
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.evaluator import Evaluator
from slipstream.training.environments.factory import (
    DataWindow,
    frozen_settings,
    load_window,
)
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.runs.policies import DeployedPolicy, deployed_folder
from slipstream.training.runs.run import CONFIG, Run
from slipstream.training.settings.config import RunConfig

COST_MULTIPLE = 3.0
NUM_CUTS = 300
NUM_RANGES, RANGE_BARS = 10, 400  # ranges that contain the cuts
_YEAR = 365 * DAY


def deploy_policy(
    source: str | Path,
    name: str,
    force: Mapping[str, str],
    *,
    preference: Callable[[DeployedPolicy], str] | None = None,
    notify: Callable[[str], None] = lambda sentence: None,
    trust: bool = False,
) -> Deployment:
    """Make the policy of a study or run the current version of a deployment.

    Args:
        source: name or folder of a study or run, or a policy folder.
        name: name of the deployment, in ./deployments.
        force: gates that may fail, with reasons.
        preference: called after all gates passed; returns why the policy is preferred, or raises.
        notify: called with the result of each gate.
        trust: as for `slipstream evaluate`.

    Raises:
        ConfigError: a gate failed that was not forced, or the policy does not trade prices from
            files.
    """
    path = Path(source).expanduser()
    path = path if path_exists(path / checkpoint.MANIFEST) else lookup(path)[0]
    tensors, metadata = _load_source(path, trust)
    section = metadata["run"]["env"]
    data = section.get("data")
    if not isinstance(data, Mapping) or "features" not in metadata["policy"]["training_context"]:
        raise ConfigError(
            f"{path} was trained on {section.get('name')}, which reads no price files or declares "
            "no features. Deploy a policy of forex, portfolio or another market that declares "
            "both."
        )
    deployment = Deployment.from_name(name)
    make_folder(deployment.path / VERSIONS)
    with acquire_lock(deployment.path, f"Another process deploys {name}: wait for it."):
        number = max(deployment.versions, default=0) + 1
        environment = _load_bars(metadata)
        schema, bars = _infer_schema(environment, data)
        store = schema.data_section(deployment.account(number) / BARS)
        run = {**metadata["run"], "env": {**section, "data": store}}
        feed = {key: value for key, value in data.items() if key not in ("folder", "symbols")}
        version_metadata = {**metadata, "run": run, "feed": feed, "shape": schema._asdict()}
        config = RunConfig.from_mapping(run)
        new = DeployedPolicy(path, unpack(tensors, metadata["policy"]), config, version_metadata)
        trained = _load_bars(metadata, *metadata["trained"]) if metadata["trained"] else environment
        ranges = FeatureRanges.from_environment(trained)
        version_metadata["ranges"] = {
            name: values.tolist() for name, values in ranges._asdict().items()
        }
        until = metadata["trained"][1] if metadata["trained"] else None
        version_metadata["training_prices"] = {
            symbol_bars.symbol: TrainingPrices.from_bars(symbol_bars, until).to_metadata()
            for symbol_bars in bars[: len(schema.symbols)]
        }
        gates = evaluate_gates(new, schema, bars)
        _require_gates(gates, force, notify)
        gate_results = [{**gate._asdict(), "forced": force.get(gate.name)} for gate in gates]
        reason = {} if preference is None else {"why": preference(new)}
        checkpoint.save(
            deployment.version(number), tensors, {**version_metadata, "gates": gate_results}
        )
        if not path_exists(deployment.path / folder_registry.PROVENANCE):
            write_json(deployment.path / folder_registry.PROVENANCE, provenance.describe())
            folder_registry.register_folder(
                deployment.path, DEPLOYMENT, str(section["name"]), notify
            )
        deployment.switch(
            number, "deploy", source=str(path.absolute()), gates=gate_results, **reason
        )
    return deployment


def _load_source(path: Path, trust: bool) -> tuple[checkpoint.Tensors, dict[str, Any]]:
    """Return a policy's tensors and the metadata of its version, independent of the source."""
    folder = deployed_folder(path)
    if folder is not None:
        DeployedPolicy.open(folder, trust)  # raises if the policy cannot be used
        tensors, manifest = checkpoint.load(folder)
        environment = manifest.get("environment") or {}
        keys = ("study", "id", "trial", "label", "promoted", "policy", "run")
        copied = {key: manifest[key] for key in keys if manifest.get(key) is not None}
    else:
        run = Run.open(path, trust=trust)
        member = run.best.highest
        tensors, manifest = run.best.load(member)
        environment = run.provenance.get("environment") or {}
        copied = {"policy": manifest["policy"], "run": run.config.as_mapping()}
        copied |= {"id": run.provenance.get("id"), "label": f"member {member} of {path.name}"}
    windows = environment.get("windows_utc_seconds") or {}
    # Without windows, since they would forbid evaluating the deployment on bars of its own folder.
    copied["environment"] = {"carried": frozen_settings({"environment": environment})}
    copied["trained"] = windows.get("train") or windows.get("development")
    copied["trained_until"] = max((int(window[1]) for window in windows.values()), default=None)
    return tensors, copied


def _load_bars(
    metadata: Mapping[str, Any], start: int | None = None, stop: int | None = None
) -> KernelEnvironment:
    """Load the source's bars, or a range of them, as one window."""
    section = dict(metadata["run"]["env"])
    name = str(section.pop("name"))
    window = DataWindow(start=start, stop=stop, frozen=frozen_settings(metadata))
    return load_window(name, section, window)


def _infer_schema(
    environment: Environment, data: Mapping[str, Any]
) -> tuple[BarSchema, list[Bars]]:
    """Return the inferred schema and the bars of all its symbols."""
    context, metadata = environment.training_context, environment.provenance
    symbols = tuple(context["symbols"])
    pairs = (metadata.get("converted_by") or {}).values()
    converting = sorted({pair for pair in pairs if pair is not None and pair not in symbols})
    section = {**data, "symbols": list(symbols)}
    market = load_market(DataConfig.model_validate(section))
    extra = tuple(feature["column"] for feature in context["features"] if "column" in feature)
    values = (
        symbols,
        tuple(converting),
        market.bar_seconds,
        market.kind,
        extra,
        data["market"],
    )
    converting_section = {**data, "symbols": converting}
    more = load_market(DataConfig.model_validate(converting_section)).bars if converting else ()
    return BarSchema(*values), [*market.bars, *more]


def _require_gates(
    gates: Sequence[Gate], force: Mapping[str, str], notify: Callable[[str], None]
) -> None:
    """Report each gate.

    Raises:
        ConfigError: a gate failed that was not forced, or a forced gate does not exist.
    """
    names = [gate.name for gate in gates]
    for name in force:
        if name not in names:
            raise ConfigError(
                f"--force {name}: there is no such gate. Choose from {', '.join(names)}."
            )
    for gate in gates:
        forced = "" if gate.passed or gate.name not in force else f"; forced: {force[gate.name]}"
        notify(f"{'passed' if gate.passed else 'FAILED'}  {gate.name}: {gate.figure}{forced}")
    failed = [gate.name for gate in gates if not gate.passed and gate.name not in force]
    if failed:
        options = " ".join(f"--force {name}" for name in failed)
        raise ConfigError(
            f"Nothing was deployed: {', '.join(failed)} failed. To deploy anyway, use "
            f'`{options} --reason "..."`. Every page of the deployment shows the reason.'
        )


class Gate(NamedTuple):
    """Result of one gate.

    Attributes:
        name: as in `--force`.
        passed: True if the gate passed.
        figure: what was measured.
    """

    name: str
    passed: bool
    figure: str


def evaluate_gates(deployed: DeployedPolicy, schema: BarSchema, bars: Sequence[Bars]) -> list[Gate]:
    """Evaluate all gates, in order.

    Args:
        deployed: the policy to deploy; its path is that of a study, of a policy or of a run.
        schema, bars: of the source.
    """
    source = deployed.path
    study = next((path for path in (source, source.parent) if (path / LEDGER).is_file()), None)
    folder = None if study is None else StudyFolder(study)
    if folder is None or not folder.result:
        reason = "a policy without its study has no results. Deploy the folder of its study"
        if folder is not None:
            reason = f"the study is not complete. `slipstream resume {folder.handle}` completes it"
        elif (source / CONFIG).is_file():
            config = shlex.quote(str(source / CONFIG))
            reason = f"a run has no study. Start one with `slipstream tune {config} --study-name X`"
        names = ("confirmed", "holdout", "pbo", "dsr", "costs")
        gates = [Gate(name, False, f"not computed: {reason}") for name in names]
    else:
        gates = [
            *_study_gates(folder, folder.result),
            _cost_gate(folder, folder.result, deployed),
        ]
    return [*gates, _truncation_gate(deployed, schema, bars)]


def _study_gates(folder: StudyFolder, result: Mapping[str, Any]) -> list[Gate]:
    """Return the gates measured by the study."""
    winner, confirmation = result["confirmation"].get("winner"), result["confirmation"]
    confirmed = winner is not None and not (result.get("winner") or {}).get("forced")
    reason = f"trial {winner}" if confirmed else confirmation.get("reason") or "no winner"
    evidence = result.get("evidence") or {}
    config = shlex.quote(str(folder.config))
    pbo, dsr = evidence.get("pbo") or {}, evidence.get("deflated_sharpe") or {}
    return [
        Gate("confirmed", confirmed, str(reason)),
        _holdout_gate(result, folder.handle),
        _statistic_gate("pbo", pbo, "at most", MAX_PBO, config),
        _statistic_gate("dsr", dsr, "at least", MIN_DSR, config),
    ]


def _holdout_gate(result: Mapping[str, Any], study: str) -> Gate:
    """Return the study's promotion: bounds above 0 on fresh days, all constraints satisfied."""
    metadata = result.get("holdout") or {}
    if "mean_return" not in metadata:
        seeds = [seed.get("reason") for seed in metadata.get("seeds", ()) if seed.get("failed")]
        resume = f"`slipstream resume {study} --force-deploy` opens it for the best candidate"
        reason = (
            f"no final seed was evaluated on it: {seeds[0]}" if seeds else f"not opened. {resume}"
        )
        return Gate("holdout", False, f"not computed: {reason}")
    benchmark = metadata.get("benchmark_return")
    figure = f"{100 * metadata['mean_return']:+.2f} %"
    figure += "" if benchmark is None else f" beside {100 * benchmark:+.2f} % of equal weight"
    figure += f". {describe_promotion(result)}"
    if (opening := metadata.get("opening", 1)) > 1:
        figure += f" It is opening {opening} of these days."
    return Gate("holdout", bool(metadata.get("promoted")), figure)


def _statistic_gate(
    name: str, metadata: Mapping[str, Any], side: str, limit: float, config: str
) -> Gate:
    value = metadata.get("value")
    if value is None:
        reason = metadata.get("reason", "nothing was measured")
        new = f"`slipstream tune {config} --study-name X --n-trials N` with more trials, of which "
        new += "pruning stops some (`--set study.pruning.enabled=false`: none), or with more days"
        return Gate(name, False, f"not computed: {reason}. A new study computes it: {new}")
    passed = value <= limit if side == "at most" else value >= limit
    return Gate(name, bool(passed), f"{value:.3f}, {side} {limit:g}")


def _cost_gate(folder: StudyFolder, result: Mapping[str, Any], deployed: DeployedPolicy) -> Gate:
    """Return the gate of the hold-out's net return at three times the costs."""
    overrides = (result.get("winner") or {}).get("overrides") or {}
    environment, reason = study_environment(folder, overrides)
    if environment is None or environment.spec.market is None:
        folder_of_prices = (folder.base.env_settings.get("data") or {}).get("folder")
        fix = f"{reason}: restore them in {folder_of_prices}, and deploy again" if reason else ""
        return Gate("costs", False, f"not computed: {fix or 'the environment declares no prices'}")
    records = environment.records(HOLDOUT)
    backend = deployed.config.training.resolved_backend
    backtest = MarketBacktest.from_environment(environment)
    if backtest is None or "cost_multiple" not in records[0]._fields:
        return Gate(
            "costs", False, "not computed: the costs of this environment cannot be multiplied"
        )
    episodes = Evaluator(environment, HOLDOUT, backend=backend).run(deployed.policy, record=True)[0]
    params = tuple(
        record._replace(cost_multiple=COST_MULTIPLE * record.cost_multiple) for record in records
    )
    actions = [episode.actions for episode in episodes]
    passes = backtest.for_split(HOLDOUT, backend)
    replayed = replay(passes.environment, HOLDOUT, actions, params=params, backend=backend)
    net = float(np.prod(1.0 + daily_returns(passes, replayed)[1]) - 1.0)
    return Gate(
        "costs", net > 0.0, f"{100 * net:+.2f} % on the hold-out at costs x {COST_MULTIPLE:g}"
    )


def _truncation_gate(deployed: DeployedPolicy, schema: BarSchema, bars: Sequence[Bars]) -> Gate:
    """Return the gate that decisions on truncated bars of the last year equal those on all bars."""
    try:
        equal, num_cuts, where = count_equal_cuts(deployed, schema, bars, NUM_CUTS)
    except SlipstreamError as error:
        return Gate("cuts", False, f"not computed: {error}")
    figure = f"{equal} of {num_cuts} cuts of the last year are bit-identical"
    if not num_cuts:
        figure = "not computed: the last year has no range without long gaps. Fix the prices"
    return Gate(
        "cuts", num_cuts > 0 and equal == num_cuts, figure + (f", not {where}" if where else "")
    )


def count_equal_cuts(
    deployed: DeployedPolicy, schema: BarSchema, bars: Sequence[Bars], cuts: int
) -> tuple[int, int, str]:
    """Count the cuts with the same decisions as the full range.

    The full range includes the warm-up before it. Action and equity of each bar are compared bit
    for bit.

    Returns:
        Number of equal cuts, number of cuts, and the first unequal one.
    """
    context = deployed.policy.training_context
    memory = int(context["warm_up_bars"]) + int(context["lookback"]) + 2
    times = np.unique(
        np.concatenate([symbol_bars.time for symbol_bars in bars[: len(schema.symbols)]])
    )
    last = len(times) - 2
    first = max(int(np.searchsorted(times, times[-1] - _YEAR)), memory)
    if last - first < 2:
        raise DataError(f"{len(times):,} bars are too few for warm-up and cuts. Use more bars.")
    length = min(RANGE_BARS, last - first)
    starts = np.unique(np.linspace(first, max(last - length, first), NUM_RANGES).astype(int))
    draw = np.random.default_rng(0)
    num_equal, num_tried, where = 0, 0, ""
    for start in starts.tolist():
        begin, end = int(times[start - memory]), min(start + length, last)
        part = [symbol_bars.between(begin, int(times[end + 1]) + 1) for symbol_bars in bars]
        first_time = int(times[start])
        try:
            full_passes = {
                full_pass.name: full_pass
                for full_pass in replay_passes(deployed, schema.make_market(part), first_time)
            }
        except DataError:  # a gap that ends a pass, or a symbol that is not listed yet
            continue
        actions_by_pass = {name: full_pass.action for name, full_pass in full_passes.items()}
        warm = (
            max(
                int(np.searchsorted(times, full_pass.time[0])) for full_pass in full_passes.values()
            )
            + 2
        )
        if warm >= end:
            continue
        for row in draw.integers(warm, end, -(-cuts // len(starts))).tolist():
            past = [symbol_bars.between(begin, int(times[row]) + 1) for symbol_bars in part]
            ahead = schema.make_market_ahead(past, int(times[row]))
            before = {
                name: actions[: np.count_nonzero(full_passes[name].time < times[row])]
                for name, actions in actions_by_pass.items()
            }
            same = True
            for cut_pass in replay_passes(deployed, ahead, first_time, before):
                full_pass = full_passes[cut_pass.name]
                n = int(np.count_nonzero(full_pass.time <= times[row]))
                # The full range has no bar after the last one of a delisted symbol.
                same &= len(cut_pass.time) in (n, n + (n == len(full_pass.time)))
                for cut_values, full_values in zip(cut_pass[1:4], full_pass[1:4], strict=True):
                    same &= cut_values[:n].tobytes() == full_values[:n].tobytes()
            num_equal, num_tried = num_equal + same, num_tried + 1
            where = where or ("" if same else str(np.datetime64(int(times[row]), "s")))
    return num_equal, num_tried, where
