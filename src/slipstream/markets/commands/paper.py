"""`slipstream paper`: start, inspect, compare and stop the paper accounts of deployments."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.core.terminal import Background, LogFile, Trust, print_text
from slipstream.core.text import format_columns

if TYPE_CHECKING:
    from slipstream.markets.live.account_comparison import ComparedPass, Execution

app = typer.Typer(
    name="paper",
    no_args_is_help=True,
    epilog="Example: slipstream paper start eurusd --feed tail:data/EURUSD_M15.csv",
)
FILE_COMMANDS = ("paper start",)

Name = Annotated[str, typer.Argument(help="Name or folder of a deployment.")]


@app.callback(rich_help_panel="Trading")
def paper() -> None:
    """Run, inspect and stop paper accounts of deployments."""


# Long: one parameter per option.
@app.command(epilog="Example: slipstream paper start eurusd --feed replay:data/new")
def start(
    context: typer.Context,
    name: Name,
    feed: Annotated[
        str | None,
        typer.Option(
            help="Read bars from replay:DIR, tail:FILE or ccxt:EXCHANGE.",
            show_default="the feed stored with the account",
        ),
    ] = None,
    first: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="DATE",
            help="Start a new account at this UTC time.",
            show_default="the first bar with all features, or the newest bar of a growing file",
        ),
    ] = None,
    max_gap: Annotated[
        int, typer.Option(min=0, help="Stop if more than this many bars are missing.")
    ] = 12,
    grace: Annotated[
        float, typer.Option(min=0.0, help="Treat a bar as closed this many seconds after its end.")
    ] = 5.0,
    broker: Annotated[
        str | None,
        typer.Option(
            help="Send orders to this paper account: alpaca-paper, or none.",
            show_default="the broker stored with the account, else none",
        ),
    ] = None,
    max_exposure: Annotated[
        float | None,
        typer.Option(help="Limit holdings to this fraction of the equity.", show_default="1"),
    ] = None,
    max_order: Annotated[
        float | None,
        typer.Option(help="Limit a purchase to this fraction of the equity.", show_default="1"),
    ] = None,
    max_orders_per_day: Annotated[
        int | None,
        typer.Option(help="Limit the number of orders per UTC day.", show_default="200"),
    ] = None,
    max_daily_loss: Annotated[
        float | None,
        typer.Option(
            help="Stop purchases after a daily loss of this fraction of the equity.",
            show_default="0.1",
        ),
    ] = None,
    max_data_age: Annotated[
        float | None,
        typer.Option(
            help="Send no orders later than this many seconds after a bar's end.",
            show_default="one bar length",
        ),
    ] = None,
    max_clock_skew: Annotated[
        float | None,
        typer.Option(
            help="Send no orders if both clocks differ by more than this many seconds.",
            show_default="30",
        ),
    ] = None,
    max_drift: Annotated[
        float | None,
        typer.Option(
            help="Send no orders if a feature leaves its training range by more than this fraction "
            "of the range.",
            show_default="0.5",
        ),
    ] = None,
    time_zone: Annotated[
        str | None,
        typer.Option(
            help="Read timestamps without a zone in this time zone, such as UTC.",
            show_default="the zone of the deployment",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--run-once", help="Process all closed bars and exit.")
    ] = False,
    trust: Trust = False,
    background: Background = False,
    log: LogFile = None,
) -> None:
    """Start or continue the paper account of a deployment.

    A replay ends with its bars. A growing file or an exchange is followed until Ctrl-C,
    `slipstream stop` or `slipstream paper stop`. Without limit options, the limits stored with the
    account apply.
    """
    from slipstream.core.text import parse_utc
    from slipstream.markets.live.account_runner import run_account
    from slipstream.markets.live.deployment import Deployment
    from slipstream.markets.live.order_manager import Limits

    limits = Limits.from_options(
        {
            "max_exposure": max_exposure,
            "max_order": max_order,
            "max_orders_per_day": max_orders_per_day,
            "max_daily_loss": max_daily_loss,
            "max_data_age": max_data_age,
            "max_clock_skew": max_clock_skew,
            "max_drift": max_drift,
        }
    )
    if background or log:
        folder = Deployment.open(name).path
        if context.obj(context, folder, name=folder):
            return
    decisions = run_account(
        name,
        feed,
        start=parse_utc(first),
        max_gap=max_gap,
        grace=grace,
        once=once,
        broker=broker,
        limits=limits,
        time_zone=time_zone,
        notify=print_text,
        trust=trust,
    )
    print_text(
        f"Decisions: {decisions:,}. `slipstream paper report {shlex.quote(name)}` compares the "
        "account with a backtest."
    )


@app.command(epilog="Example: slipstream paper status eurusd")
def status(
    name: Annotated[
        str | None,
        typer.Argument(help="Name or folder of a deployment.", show_default="all deployments"),
    ] = None,
) -> None:
    """Print the state of one or all paper accounts."""
    from slipstream.markets.live.account_status import AccountRow, list_accounts
    from slipstream.markets.live.deployment import Deployment
    from slipstream.studies.record.inspection import describe

    if name is not None:
        print_text("\n".join(describe(Deployment.open(name).path)))
        return
    rows = list_accounts()
    if not rows:
        print_text("Nothing is deployed. Use `slipstream deploy STUDY --name NAME`.")
        return
    print_text("\n".join(format_columns(AccountRow._fields, rows)))


@app.command(epilog="Example: slipstream paper report eurusd")
def report(name: Name, trust: Trust = False) -> None:
    """Compare an account with `slipstream evaluate` on the same bars.

    The exit status is 1 if an action or an equity is not bit-identical.
    """
    from slipstream.core.text import stamp
    from slipstream.markets.live.account_comparison import compare
    from slipstream.markets.live.deployment import Deployment

    deployment = Deployment.open(name)
    policy, passes, execution = compare(name, trust)  # raises if there is no account
    metadata = policy.metadata
    print_text(f"{deployment.path.name}, version {deployment.current}: {metadata.get('label', '')}")
    for gate in metadata["gates"]:
        forced = f"; FORCED: {gate['forced']}" if gate["forced"] and not gate["passed"] else ""
        print_text(f"  gate {gate['name']}: {gate['figure']}{forced}")
    begin = min(compared.rows[0].time for compared in passes)
    trained_until = metadata.get("trained_until")
    if trained_until is not None and begin < trained_until:
        print_text(
            f"  The account starts before {stamp(trained_until)}, the end of the bars on which the "
            "policy was trained or selected."
        )
    for compared in passes:
        print_text(_pass_text(compared))
    if execution is not None:
        print_text(_execution_text(execution))
    if any(compared.num_equal < compared.num_compared for compared in passes):
        raise typer.Exit(1)


@app.command(epilog="Example: slipstream paper stop eurusd --flat")
def stop(
    name: Name,
    flat: Annotated[
        bool, typer.Option("--flat", help="Sell all positions at the broker first.")
    ] = False,
) -> None:
    """Stop an account and cancel its orders.

    This sets the account's kill switch, the file KILL in the deployment's folder.

    Remove that file to let the account continue. To pause it without the kill switch, use
    `slipstream stop`.
    """
    from slipstream.markets.live.account_runner import stop_account

    stop_account(name, flat, print_text)


def _pass_text(compared: ComparedPass) -> str:
    """Return the comparison of one pass with `evaluate`."""
    from slipstream.core.text import stamp

    first, last = compared.rows[0], compared.rows[-1]
    text = (
        f"{compared.name}: {len(compared.rows):,} decisions, {stamp(first.time)} to "
        f"{stamp(last.time)} UTC, equity {last.equity:,.2f}. {compared.num_equal:,} of "
        f"{compared.num_compared:,} decisions are bit-identical to `evaluate` in action and "
        f"equity; {compared.fills:,} fills cost {compared.costs:,.2f}; equity after closing all "
        f"positions: {compared.liquidated_equity:,.2f}."
    )
    if compared.first_difference is not None:
        text += f"\n  First difference: {stamp(compared.first_difference)} UTC."
    return text


def _execution_text(execution: Execution) -> str:
    """Return the comparison of a broker's fills with the rules."""
    return (
        f"Broker: {execution.filled:,} of {execution.orders:,} orders filled over "
        f"{execution.bars:,} bars; {execution.superseded:,} bars were superseded by the next one. "
        f"Slippage against the mid price at which the rules fill: "
        f"{_basis_points(execution.slippage)}; the rules assume "
        f"{_basis_points(execution.assumed)}. Tracking error: "
        f"{_basis_points(execution.tracking_error)} per bar."
    )


def _basis_points(fraction: float | None) -> str:
    return "unknown" if fraction is None else f"{1e4 * fraction:+.1f} bp"
