"""Arguments that several commands share, each declared once, and what a tab offers for them.

Names and defaults are those of the Python twins in `slipstream.api`
(tests/interfaces/cli/test_twins.py). Every command takes `--cores`: the processors that a process
and its children may use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.core.errors import ConfigError

if TYPE_CHECKING:
    from slipstream.training.callbacks.console import ConsoleCallback
    from slipstream.training.cluster.cluster import ClusterOptions


_CONFIGS = (".yaml", ".yml", ".json", ".py")


def complete_targets(incomplete: str) -> list[str]:
    """Environments, and the configs and kernel files that the word may go on to."""
    from slipstream.kernels.kernel_registry import list_kernels

    named = [name for name in [*list_kernels(), "gym:"] if name.startswith(incomplete)]
    return named + sorted(_complete_paths(incomplete, _CONFIGS))


def complete_environments(incomplete: str) -> list[str]:
    """Environments alone: what `init` writes a config for."""
    return [
        target
        for target in complete_targets(incomplete)
        if not target.endswith((".yaml", ".yml", ".json"))
    ]


def complete_runs(incomplete: str) -> list[str]:
    """Run directories, and folders on the way to one."""
    within = Path(incomplete).parent if incomplete and not incomplete.endswith("/") else None
    folder = within or Path(incomplete or "runs")
    found = [str(path.parent) for path in folder.glob("*/config.yaml")]
    return sorted(name for name in found if name.startswith(incomplete)) or sorted(
        _complete_paths(incomplete, ())
    )


def complete_studies(incomplete: str) -> list[str]:
    """Names of the studies below ./studies."""
    names = sorted(path.parent.name for path in Path("studies").glob("*/study.yaml"))
    return [name for name in names if name.startswith(incomplete)]


def complete_runs_and_studies(incomplete: str) -> list[str]:
    """Names of studies, then run directories."""
    return complete_studies(incomplete) + complete_runs(incomplete)


def complete_settings(incomplete: str) -> list[str]:
    """``agent.epochs=`` and others, of the agent and the built-in environment that were named.

    A file of the user's is not run by a tab: beside one, sections but `env` are offered.
    """
    from slipstream.core.errors import SlipstreamError
    from slipstream.kernels.kernel_registry import list_kernels, load_kernel
    from slipstream.training.settings.config import resolve

    # Behind an option that waits for its value the words are not parsed: shells hand them over so.
    line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    words = line.split()
    agent = [one for one in words if one.startswith("agent.name=") and not one.endswith(".py")]
    try:
        sections: dict[str, Any] = resolve("cartpole", agent[-1:]).as_mapping()
    except SlipstreamError:
        return []
    known = [one for one in words if one in list_kernels()][:1]
    sections["env"] = load_kernel(known[0]).Config.model_fields if known else ()
    names = (f"{section}.{name}=" for section, held in sections.items() for name in held)
    return [name for name in names if name.startswith(incomplete)]


def _complete_paths(incomplete: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    """Folders and files that begin so; folders end in a slash, as shells write them."""
    slash = incomplete.rfind("/") + 1
    before, begun = incomplete[:slash], incomplete[slash:]
    try:
        entries = sorted(Path(before or ".").expanduser().iterdir())
    except OSError:
        return
    for entry in entries:
        hidden = entry.name.startswith(".") and not begun.startswith(".")
        if hidden or not entry.name.startswith(begun):
            continue
        if entry.is_dir():
            yield f"{before}{entry.name}/"
        elif entry.suffix in suffixes:
            yield f"{before}{entry.name}"


Target = Annotated[
    str,
    typer.Argument(
        help="A YAML or JSON file, an environment's name, a kernel's .py file, or gym:ID.",
        autocompletion=complete_targets,
    ),
]
RunOrPolicy = Annotated[
    Path, typer.Argument(help="Run directory, or a policy's folder.", autocompletion=complete_runs)
]
RunOrStudy = Annotated[
    str,
    typer.Argument(
        help="Run directory, or a study's name or folder.",
        autocompletion=complete_runs_and_studies,
    ),
]
RunOrStudyOrNone = Annotated[
    str | None,
    typer.Argument(
        help="Run directory, or a study's name or folder; all that runs unless given.",
        autocompletion=complete_runs_and_studies,
    ),
]
StudyName = Annotated[
    str,
    typer.Argument(help="Name of a study, or its folder.", autocompletion=complete_studies),
]
Device = Annotated[
    str | None,
    typer.Option(help="Where learning happens: cpu unless given, cuda:N for card N."),
]
Gpu = Annotated[int | None, typer.Option("--gpu", min=0, help="N means --device cuda:N.")]
ClusterAddress = Annotated[
    str | None,
    typer.Option(
        "--cluster", help="Ray's: auto, local or HOST:PORT; docs/clusters.md. None unless given."
    ),
]
MaxWorkers = Annotated[
    int | None,
    typer.Option(help="Workers of a cluster at most; as many as there are cores unless given."),
]
GpuShare = Annotated[
    float | None, typer.Option(help="Of a card for each worker of a cluster; 1 unless given.")
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure-cluster", help="Use a cluster that lets in whoever reaches it."),
]
NoReport = Annotated[bool, typer.Option("--no-report", help="Do not write report.html.")]
NoStudyReport = Annotated[bool, typer.Option("--no-report", help="Do not write study.html.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Processes; one per core unless given."),
]
Hours = Annotated[
    float | None,
    typer.Option(help="Time budget: cuts the search and sizes the confirmation to fit."),
]
Storage = Annotated[
    str | None,
    typer.Option(help="sqlite, journal, sqlite:///FILE, journal:FILE or postgresql://..."),
]
Force = Annotated[
    bool, typer.Option("--force-deploy", help="Deploy the best one even if nothing is recommended.")
]

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="A.B=C",
        help="Sets any field, such as agent.epochs=2 (tune: study.penalty=0).",
        autocompletion=complete_settings,
    ),
]


def cluster_options(given: Mapping[str, Any]) -> ClusterOptions | None:
    """Return what --cluster and its companions name; None without it.

    Raises:
        ConfigError: companions without it.
    """
    from slipstream.training.cluster.cluster import ClusterOptions

    most, share, insecure = (given[k] for k in ("max_workers", "gpu_share", "insecure_cluster"))
    if given["cluster"] is not None:
        return ClusterOptions(given["cluster"], most, insecure, 1.0 if share is None else share)
    if most is not None or share is not None or insecure:
        raise ConfigError(
            "--max-workers, --gpu-share and --insecure-cluster are about a cluster: give "
            "--cluster auto, local or HOST:PORT, too, or leave them out."
        )
    return None


def device_override(given: Mapping[str, Any]) -> str | None:
    """Return what --device or --gpu names; None if neither is given.

    Raises:
        ConfigError: both are.
    """
    device, gpu = given["device"], given["gpu"]
    if gpu is not None and device is not None:
        raise ConfigError("--gpu and --device say the same thing: give one of them.")
    return device if gpu is None else f"cuda:{gpu}"


def train_overrides(given: Mapping[str, Any]) -> dict[str, Any]:
    """What `train`'s options say, by dotted path."""
    from slipstream.core.storage import yaml_file
    from slipstream.training.settings.config import parse_overrides

    flags = {name: given[name] for name in ("num_envs", "members", "total_steps", "seed")}
    flags["device"] = device_override(given)
    named = {
        f"training.{name}": yaml_file.parse(text, f"--{name.replace('_', '-')} {text}")
        for name, text in flags.items()
        if text is not None
    }
    overrides = parse_overrides(given["set_"] or [])
    for path in named.keys() & overrides.keys():
        flag = path.removeprefix("training.").replace("_", "-")
        raise ConfigError(f"{path} is set twice, as --set and as --{flag}; leave one of them out.")
    return {**overrides, **named}


def tune_overrides(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `tune`'s options say: overrides by dotted path, and fields of the study."""
    from slipstream.core.storage import yaml_file
    from slipstream.training.settings.config import parse_overrides

    steps = given["total_timesteps"]
    flags: dict[str, Any] = {
        "env.data.folder": given["data_dir"],
        "env.data.timeframe": given["timeframe"],
        "training.num_envs": given["num_envs"],
        "training.device": device_override(given),
        "training.total_steps": steps and yaml_file.parse(steps, f"--total-steps {steps}"),
    }
    overrides = parse_overrides(given["set_"] or [])
    overrides |= {path: value for path, value in flags.items() if value is not None}
    section = {name: given[name] for name in ("n_trials", "seed", "space", "from_study")}
    section["final_refit"] = given["final_refit"] or None
    return overrides, {name: value for name, value in section.items() if value is not None}


def open_console() -> ConsoleCallback:
    """The terminal, which shows progress; close it when all is said."""
    from slipstream.training.callbacks.console import ConsoleCallback

    return ConsoleCallback()


def add_cores_option(app: typer.Typer) -> None:
    """Lets every command of a command line and of its groups take `--cores`."""
    for command in app.registered_commands:
        assert command.callback is not None
        command.callback = _with_cores(command.callback)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        add_cores_option(group.typer_instance)


def _with_cores(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command that takes `--cores`, too; one that has its own, of a job say, as it is."""
    declared = signature(command, eval_str=True)
    if "cores" in declared.parameters:
        return command

    @wraps(command)
    def bound(*, cores: int | None = None, **given: Any) -> Any:
        return command(**given)  # the process was bound when its options were read

    cores = Parameter("cores", Parameter.KEYWORD_ONLY, default=None, annotation=Cores)
    parameters = [*declared.parameters.values(), cores]
    bound.__signature__ = declared.replace(parameters=parameters)  # type: ignore[attr-defined]
    return bound


def select_cores(number: int | None) -> list[int]:
    """So many of the processors that this process may use; all unless given.

    Raises:
        ConfigError: there are fewer.
    """
    there = sorted(os.sched_getaffinity(0))
    if number is not None and number > len(there):
        raise ConfigError(f"--cores {number}: this process may use {len(there)}.")
    return there[:number]


def bind_cores(number: int | None) -> int | None:
    """Binds this process and its children to so many of its processors.

    Raises:
        ConfigError: there are fewer, or this system binds none.
    """
    if number is None:
        return None
    try:
        os.sched_setaffinity(0, select_cores(number))
    except (AttributeError, OSError) as error:
        raise ConfigError(
            f"--cores {number}: this system lets no process choose its processors ({error}). Leave "
            "it out."
        ) from error
    return number


Cores = Annotated[
    int | None,
    typer.Option("--cores", min=1, callback=bind_cores, help="Use so many; all unless given."),
]
