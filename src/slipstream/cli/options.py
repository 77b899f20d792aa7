"""Options and arguments that several commands share, and their shell completion.

Names and defaults match the Python API in `slipstream.api` (tests/interfaces/cli/test_twins.py).
Every command accepts `--cores`, the number of CPU cores for the process and its children.
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
    """Complete names of environments, configs and kernel files."""
    from slipstream.kernels.kernel_registry import list_kernels

    named = [name for name in [*list_kernels(), "gym:"] if name.startswith(incomplete)]
    return named + sorted(_complete_paths(incomplete, _CONFIGS))


def complete_environments(incomplete: str) -> list[str]:
    """Complete the environments and kernel files for which `init` writes a config."""
    return [
        target
        for target in complete_targets(incomplete)
        if not target.endswith((".yaml", ".yml", ".json"))
    ]


def complete_runs(incomplete: str) -> list[str]:
    """Complete run directories and the folders that lead to one."""
    parent = Path(incomplete).parent if incomplete and not incomplete.endswith("/") else None
    folder = parent or Path(incomplete or "runs")
    names = [str(path.parent) for path in folder.glob("*/config.yaml")]
    return sorted(name for name in names if name.startswith(incomplete)) or sorted(
        _complete_paths(incomplete, ())
    )


def complete_studies(incomplete: str) -> list[str]:
    """Complete names of the studies below ./studies."""
    names = sorted(path.parent.name for path in Path("studies").glob("*/study.yaml"))
    return [name for name in names if name.startswith(incomplete)]


def complete_runs_and_studies(incomplete: str) -> list[str]:
    """Complete names of studies, then run directories."""
    return complete_studies(incomplete) + complete_runs(incomplete)


def complete_settings(incomplete: str) -> list[str]:
    """Complete keys such as ``agent.n_epochs=`` of the agent and built-in environment on the line.

    Completion never runs a user's file: for kernel files all sections except `env` are offered.
    """
    from slipstream.core.errors import SlipstreamError
    from slipstream.kernels.kernel_registry import list_kernels, load_kernel
    from slipstream.training.settings.config import resolve

    # Click has not parsed the words yet while an option waits for its value.
    line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    words = line.split()
    agent = [word for word in words if word.startswith("agent.name=") and not word.endswith(".py")]
    try:
        sections: dict[str, Any] = resolve("cartpole", agent[-1:]).as_mapping()
    except SlipstreamError:
        return []
    known = [word for word in words if word in list_kernels()][:1]
    sections["env"] = load_kernel(known[0]).Config.model_fields if known else ()
    names = (f"{section}.{name}=" for section, fields in sections.items() for name in fields)
    return [name for name in names if name.startswith(incomplete)]


def _complete_paths(incomplete: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    """Yield matching folders and files; folders end in a slash."""
    slash = incomplete.rfind("/") + 1
    parent, prefix = incomplete[:slash], incomplete[slash:]
    try:
        entries = sorted(Path(parent or ".").expanduser().iterdir())
    except OSError:
        return
    for entry in entries:
        hidden = entry.name.startswith(".") and not prefix.startswith(".")
        if hidden or not entry.name.startswith(prefix):
            continue
        if entry.is_dir():
            yield f"{parent}{entry.name}/"
        elif entry.suffix in suffixes:
            yield f"{parent}{entry.name}"


Target = Annotated[
    str,
    typer.Argument(
        help="Config file, environment name, kernel file (.py) or gym:ID.",
        autocompletion=complete_targets,
    ),
]
RunOrPolicy = Annotated[
    Path,
    typer.Argument(help="Run directory or policy folder.", autocompletion=complete_runs),
]
RunOrStudy = Annotated[
    str,
    typer.Argument(
        help="Run directory, or name or folder of a study or deployment.",
        autocompletion=complete_runs_and_studies,
    ),
]
RunOrStudyOrNone = Annotated[
    str | None,
    typer.Argument(
        help="Run directory, or name or folder of a study or deployment.",
        show_default="everything that runs",
        autocompletion=complete_runs_and_studies,
    ),
]
StudyName = Annotated[
    str,
    typer.Argument(help="Name or folder of a study.", autocompletion=complete_studies),
]
Device = Annotated[
    str | None,
    typer.Option(help="Learn on this device: cpu or cuda:N.", show_default="cpu"),
]
Gpu = Annotated[
    int | None, typer.Option("--gpu", min=0, help="Learn on this GPU; short for --device cuda:N.")
]
ClusterAddress = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Use a Ray cluster: auto, local or HOST:PORT (docs/guides/clusters.md).",
        show_default="no cluster",
    ),
]
MaxWorkers = Annotated[
    int | None,
    typer.Option(help="Limit the number of cluster workers.", show_default="one per core"),
]
GpuShare = Annotated[
    float | None,
    typer.Option(help="Reserve this fraction of a GPU per cluster worker.", show_default="1"),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure-cluster", help="Accept a cluster without authentication."),
]
NoReport = Annotated[bool, typer.Option("--no-report", help="Skip writing report.html.")]
NoStudyReport = Annotated[bool, typer.Option("--no-report", help="Skip writing study.html.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Use this many worker processes.", show_default="one per core"),
]
Hours = Annotated[
    float | None,
    typer.Option(
        help="Limit the study, including its confirmation, to this many hours.",
        show_default="no limit",
    ),
]
Storage = Annotated[
    str | None,
    typer.Option(
        help="Store trials in sqlite, journal, sqlite:///FILE, journal:FILE or postgresql://...",
        show_default="sqlite",
    ),
]
Force = Annotated[
    bool,
    typer.Option("--force-deploy", help="Deploy the best candidate even if none is recommended."),
]

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="A.B=C",
        help="Set a config field, such as agent.n_epochs=2 or env.max_steps=500; repeatable.",
        autocompletion=complete_settings,
    ),
]


def cluster_options(options: Mapping[str, Any]) -> ClusterOptions | None:
    """Return the cluster that --cluster and its companions select; None without --cluster.

    Raises:
        ConfigError: a companion option is given without --cluster.
    """
    from slipstream.training.cluster.cluster import ClusterOptions

    max_workers, gpu_share, insecure = (
        options[k] for k in ("max_workers", "gpu_share", "insecure_cluster")
    )
    if options["cluster"] is not None:
        return ClusterOptions(
            options["cluster"], max_workers, insecure, 1.0 if gpu_share is None else gpu_share
        )
    if max_workers is not None or gpu_share is not None or insecure:
        raise ConfigError(
            "--max-workers, --gpu-share and --insecure-cluster require --cluster. Add "
            "--cluster auto, local or HOST:PORT, or remove them."
        )
    return None


def device_override(options: Mapping[str, Any]) -> str | None:
    """Return the device that --device or --gpu selects; None if neither is given.

    Raises:
        ConfigError: both are given.
    """
    device, gpu = options["device"], options["gpu"]
    if gpu is not None and device is not None:
        raise ConfigError("--gpu and --device both select the device. Give one of them.")
    return device if gpu is None else f"cuda:{gpu}"


def train_overrides(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config overrides of the options of `train`, by dotted path."""
    from slipstream.core.storage import yaml_file
    from slipstream.training.settings.config import parse_overrides

    flags = {name: options[name] for name in ("num_envs", "members", "total_timesteps", "seed")}
    flags["device"] = device_override(options)
    named = {
        f"training.{name}": yaml_file.parse(text, f"--{name.replace('_', '-')} {text}")
        for name, text in flags.items()
        if text is not None
    }
    overrides = parse_overrides(options["set_"] or [])
    for path in named.keys() & overrides.keys():
        flag = path.removeprefix("training.").replace("_", "-")
        raise ConfigError(f"{path} is set twice, by --set and by --{flag}. Remove one of them.")
    return {**overrides, **named}


def tune_overrides(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the config overrides of the options of `tune`, and fields of its study."""
    from slipstream.core.storage import yaml_file
    from slipstream.training.settings.config import parse_overrides

    steps = options["total_timesteps"]
    flags: dict[str, Any] = {
        "env.data.folder": options["data_dir"],
        "env.data.timeframe": options["timeframe"],
        "training.num_envs": options["num_envs"],
        "training.device": device_override(options),
        "training.total_timesteps": steps and yaml_file.parse(steps, f"--total-timesteps {steps}"),
    }
    overrides = parse_overrides(options["set_"] or [])
    overrides |= {path: value for path, value in flags.items() if value is not None}
    section = {name: options[name] for name in ("n_trials", "seed", "space", "from_study")}
    section["final_refit"] = options["final_refit"] or None
    return overrides, {name: value for name, value in section.items() if value is not None}


def open_console() -> ConsoleCallback:
    """Return the listener that shows progress on the terminal; close it at the end."""
    from slipstream.training.callbacks.console import ConsoleCallback

    return ConsoleCallback()


def add_cores_option(app: typer.Typer) -> None:
    """Add `--cores` to every command of an app and its groups."""
    for command in app.registered_commands:
        assert command.callback is not None
        command.callback = _with_cores(command.callback)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        add_cores_option(group.typer_instance)


def _with_cores(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command that accepts `--cores`; one that declares its own is returned unchanged."""
    declared = signature(command, eval_str=True)
    if "cores" in declared.parameters:
        return command

    @wraps(command)
    def bound(*, cores: int | None = None, **options: Any) -> Any:
        return command(**options)  # `bind_cores` ran while the options were parsed

    cores = Parameter("cores", Parameter.KEYWORD_ONLY, default=None, annotation=Cores)
    parameters = [*declared.parameters.values(), cores]
    bound.__signature__ = declared.replace(parameters=parameters)  # type: ignore[attr-defined]
    return bound


def select_cores(number: int | None) -> list[int]:
    """Return the first cores that this process may use; all of them if `number` is None.

    Raises:
        ConfigError: this process has fewer cores.
    """
    available = sorted(os.sched_getaffinity(0))
    if number is not None and number > len(available):
        raise ConfigError(
            f"--cores {number} is too large: this process may use {len(available)} cores. "
            "Give a smaller number."
        )
    return available[:number]


def bind_cores(number: int | None) -> int | None:
    """Bind this process and its children to a number of cores.

    Raises:
        ConfigError: this process has fewer cores, or the system does not support CPU affinity.
    """
    if number is None:
        return None
    try:
        os.sched_setaffinity(0, select_cores(number))
    except (AttributeError, OSError) as error:
        raise ConfigError(
            f"--cores {number} cannot be applied: this system does not support CPU affinity "
            f"({error}). Remove the option."
        ) from error
    return number


Cores = Annotated[
    int | None,
    typer.Option(
        "--cores",
        min=1,
        callback=bind_cores,
        help="Use only this many CPU cores.",
        show_default="all",
    ),
]
