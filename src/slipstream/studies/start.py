"""Start of a study from a user's target, or resume of an existing one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from slipstream.core.config import get_by_path, validate
from slipstream.core.errors import ConfigError
from slipstream.core.storage.logbook import Logbook
from slipstream.core.storage.signals import Interrupted
from slipstream.core.storage.status_file import Status
from slipstream.core.text import print_to_stderr
from slipstream.studies.config import StudyConfig, space_settings
from slipstream.studies.record.folder import StudyFolder, read_study
from slipstream.studies.record.warm_start import warm_start
from slipstream.studies.search.sampler import check_sampler
from slipstream.studies.search.session import PoolFactory
from slipstream.studies.space import DEFAULT, SearchSpace
from slipstream.studies.study import Resources, Study
from slipstream.training.environments.factory import get_kind
from slipstream.training.settings.config import (
    CRYPTO,
    STUDY,
    RunConfig,
    copied,
    override,
    read_config,
    read_target,
    refuse_retired,
    section_of,
    switch_agent,
)
from slipstream.training.settings.sizing import check_learner

MARKET_NUM_ENVS, GAME_NUM_ENVS = 12, 16  # per member: what 100,000 steps can bear
_UNREPORTED = "The study is complete, its page is not. Write it with:"
Notify = Callable[[str], None]
OnStatus = Callable[[Status], None]
WriteReport = Callable[[StudyFolder, Notify], Path]


def prepare_study(
    target: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any],
    study: Mapping[str, Any],
    notify: Callable[[str], None] = lambda message: None,
) -> tuple[RunConfig, StudyConfig, SearchSpace]:
    """Read and check all settings of a study; its data is not loaded.

    Args:
        target: a YAML file, an environment, a kernel's ``.py`` file, ``gym:ID``, or sections.
        overrides: dotted path -> value; those below `study.` belong to the study.
        study: fields of the `study` section that override the file's.
        notify: called with messages, such as the default opponent of a game.

    Raises:
        ConfigError: with the fix.
    """
    values = copied(target) if isinstance(target, Mapping) else read_target(str(target))
    values[STUDY] = section_of(values, STUDY)
    note = switch_agent(values, overrides)
    for path, value in overrides.items():
        if path == STUDY:
            values[STUDY] = value
        else:
            override(values, path, value)
    section = section_of({STUDY: values.pop(STUDY)}, STUDY)
    _check_prices(values, overrides)
    config = validate(StudyConfig, {**section, **study}, STUDY)
    needed = _apply_space_settings(values, config.space)
    base, opponent_note = base_config(values).with_opponent()
    starts, left = len(config.start_with), None
    if starts > config.n_trials:
        left = (
            f"`study.start_with` has {starts} settings; n_trials: {config.n_trials} tries no more."
        )
    for sentence in filter(None, (opponent_note, note, needed, left)):
        notify(sentence)
    space = SearchSpace.from_mapping(config.space, base)
    space.check_starts(config.start_with, base)
    check_sampler(config, space)
    return base, config, space


def _apply_space_settings(values: dict[str, Any], space: object) -> str | None:
    """Apply unset settings that a published space requires; return a message."""
    added = []
    for path, value in space_settings(space).items():
        with suppress(KeyError):
            if get_by_path(values, path) is not None:
                continue
        override(values, path, value)
        added.append(f"{path}={value}")
    return f"The search space {space} comes with {', '.join(added)}." if added else None


def _comparison_spaces(
    target: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any],
    study: Mapping[str, Any],
    space: object,
) -> dict[str, tuple[RunConfig, SearchSpace]]:
    """Return other spaces to forecast beside a study's own; empty if they do not apply.

    That is Cappuccino's space for `crypto`, and the default one if a published space is searched.
    """
    other = None if space_settings(space) else "cappuccino"
    if target != CRYPTO and other is not None:
        return {}
    try:
        base, _, search_space = prepare_study(
            target, overrides, {**study, "space": other, "start_with": ()}
        )
    except ConfigError:  # of settings that the other one does not search
        return {}
    return {other or DEFAULT: (base, search_space)}


def default_study_name(base: RunConfig) -> str:
    """Return the name of an unnamed study: its environment and the time."""
    return f"{base.short_name}-{time.strftime('%Y%m%d-%H%M%S')}"


def base_config(values: dict[str, Any]) -> RunConfig:
    """Return the config that trials vary, with one member and a fixed number of environments."""
    refuse_retired(values)
    training = section_of(values, "training")
    for name, reason in (
        ("members", "a study trains its own members, one for each fold of a trial"),
        ("out", "a study has its own folder, named by --study-name"),
    ):
        if training.get(name) not in (None, 1):
            raise ConfigError(f"`training.{name}` is {training[name]!r}: {reason}. Take it out.")
    if training.get("num_envs", "auto") == "auto":
        training["num_envs"] = _default_num_envs(values)
    config = RunConfig.from_mapping({**values, "training": training})
    given = values.get("agent")
    config = replace(
        config, agent=config.agent.for_study(given if isinstance(given, Mapping) else ())
    )
    if config.curriculum.phases:
        raise ConfigError(
            "A study scores its trials on one environment and has no `curriculum`: take the "
            "section out, or train it with `slipstream train`."
        )
    check_learner(config.training, image=None)  # images are known when the environment is loaded
    return config


def _check_prices(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    """Check that `--data-dir` and `--timeframe` are given only for environments with prices."""
    given = [path for path in overrides if path.startswith("env.data.")]
    name = _env_name(values)
    if not given or name is None:
        return
    if "data" not in get_kind(name).model.model_fields:
        raise ConfigError(
            f"{name} reads no prices: leave --data-dir and --timeframe ({', '.join(given)}) out."
        )


def _env_name(values: Mapping[str, Any]) -> str | None:
    section = values.get("env")
    name = section.get("name") if isinstance(section, Mapping) else section
    return name if isinstance(name, str) else None


def _default_num_envs(values: Mapping[str, Any]) -> int:
    name = _env_name(values)
    has_folds = name is not None and get_kind(name).has_folds
    return MARKET_NUM_ENVS if has_folds else GAME_NUM_ENVS


def tune(
    target: str | Path | Mapping[str, Any],
    study_name: str | None,
    overrides: Mapping[str, Any],
    study: Mapping[str, Any],
    resources: Resources,
    notify: Notify | None = None,
    on_status: OnStatus | None = None,
    report: WriteReport | None = None,
) -> StudyFolder:
    """Start or resume a study; see `slipstream.tune`."""
    notify = notify or print_to_stderr
    base, config, space = prepare_study(target, overrides, study, notify)
    name = default_study_name(base) if study_name is None else study_name
    folder = StudyFolder.from_name(name)
    folder.trust = True  # what it names was named to this command
    pools = PoolFactory(resources.workers, resources.group_size, resources.cluster, notify)
    warm_start_trials = warm_start(folder, base, config, space)
    rivals = _comparison_spaces(target, overrides, study, config.space)
    Study(
        folder,
        base,
        config,
        space,
        pools,
        resources,
        notify,
        on_status or _ignore_status,
        rivals,
        warm_start_trials,
    ).run()
    return _finish(folder, report, notify)


def _finish(folder: StudyFolder, report: WriteReport | None, notify: Notify) -> StudyFolder:
    """Log the outcome and the path of the report, if one is written."""
    if report is None:
        for sentence in [*(folder.result or {})["sentences"], f"Study: {folder.path}"]:
            notify(sentence)
        return folder
    try:
        notify(f"Report: {report(folder, notify)}")
    except KeyboardInterrupt:
        command = f"slipstream study report {folder.handle}"
        raise Interrupted(folder.path, command, _UNREPORTED) from None
    return folder


def resume(
    name: str,
    resources: Resources,
    trust: bool = False,
    notify: Notify | None = None,
    on_status: OnStatus | None = None,
    report: WriteReport | None = None,
) -> StudyFolder:
    """Resume a study by its name or path."""
    folder, notify = StudyFolder.open(name, trust=trust), notify or print_to_stderr
    if folder.result is not None and not resources.force_deploy:
        if report is None or folder.has_report:
            if not folder.is_locked:
                Logbook(folder.path, "study", notify).mark_complete()
            notify(f"{folder.path} is complete; see `slipstream study status {folder.handle}`.")
            return folder
        notify(f"{folder.path} is complete, but its page is missing: it is written now.")
        folder.lock()
        try:
            Logbook(folder.path, "study", notify).mark_complete()
        finally:
            folder.unlock()
        return _finish(folder, report, notify)
    read_study(folder.config, trust)  # raises with a fix if it is damaged
    target = read_config(folder.config)
    return tune(target, str(folder.path), {}, {}, resources, notify, on_status, report)


def _ignore_status(status: Status) -> None:
    pass
