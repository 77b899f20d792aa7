"""`slipstream deploy` and `rollback`: named deployments of a policy and their versions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipstream.core.errors import ConfigError
from slipstream.core.terminal import Background, LogFile, Trust, print_text

app = typer.Typer()
FILE_COMMANDS = ("deploy",)


# Long: one parameter per option.
@app.command(rich_help_panel="Trading", epilog="Example: slipstream deploy night --name eurusd")
def deploy(
    context: typer.Context,
    source: Annotated[
        Path | None,
        typer.Argument(help="Name or folder of a study or run, or a policy folder."),
    ] = None,
    *,
    name: Annotated[
        str, typer.Option("--name", help="Name the deployment; its folder is ./deployments/NAME.")
    ],
    force: Annotated[
        list[str] | None,
        typer.Option(metavar="GATE", help="Deploy even if this gate fails; repeatable."),
    ] = None,
    reason: Annotated[
        str, typer.Option(help="State why gates are forced; every page shows it.")
    ] = "",
    watch: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Watch for better studies whose names match."),
    ] = None,
    once: Annotated[
        bool, typer.Option("--run-once", help="Check the studies once and exit, with --watch.")
    ] = False,
    trust: Trust = False,
    background: Background = False,
    log: LogFile = None,
) -> None:
    """Deploy a policy if it passes every gate.

    With --watch, matching studies are checked when they complete and once a day, until Ctrl-C. A
    study is deployed if it passes every gate and beats the current version. The comparison uses
    bars that neither policy was trained on and no earlier hold-out evaluation has used.
    """
    from slipstream.markets.live import auto_promotion
    from slipstream.markets.live.deployment import Deployment
    from slipstream.markets.live.deployment_gates import deploy_policy

    needs_watch = (once or background or log) and not watch
    if (source is None) == (watch is None) or (watch and (force or trust)) or needs_watch:
        raise ConfigError(
            "Write `slipstream deploy STUDY --name NAME`, or `slipstream deploy --watch 'PATTERN*' "
            "--name NAME`. --run-once, --background and --log require --watch; --force and "
            "--trust cannot be combined with it."
        )
    if watch is not None:
        deployment = Deployment.from_name(name)
        if context.obj(context, auto_promotion.watch_folder(deployment), name=deployment.path):
            return
        auto_promotion.watch_studies(watch, name, once=once, notify=print_text)
        return
    assert source is not None
    if force and not reason.strip():
        raise ConfigError(
            '--force requires a reason. Add --reason "..."; it is stored with the version.'
        )
    forced = dict.fromkeys(force or (), reason)
    deployment = deploy_policy(source, name, forced, notify=print_text, trust=trust)
    print_text(
        f"Version {deployment.current} of {deployment.path.name} is deployed: {deployment.path}"
    )


@app.command(rich_help_panel="Trading", epilog="Example: slipstream rollback eurusd")
def rollback(
    name: Annotated[str, typer.Argument(help="Name or folder of a deployment.")],
    to: Annotated[
        int | None,
        typer.Option(help="Restore this version.", show_default="the previous version"),
    ] = None,
) -> None:
    """Restore an earlier version of a deployment.

    The paper account of that version continues.
    """
    from slipstream.markets.live.deployment import Deployment

    deployment = Deployment.open(name)
    deployment.switch(deployment.previous if to is None else to, "rollback")
    print_text(f"Version {deployment.current} of {deployment.path.name} is current.")
