"""`slipstream deploy`, `rollback` and `paper`: deployments and their paper accounts."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from slipstream.core.errors import ConfigError
from slipstream.core.terminal import Background, LogFile, Trust, print_text

app = typer.Typer()
FILE_COMMANDS = ("deploy", "paper")

Name = Annotated[str, typer.Argument(help="Name of a deployment, or its folder.")]


@app.command(rich_help_panel="Trading", epilog="Example: slipstream deploy night --name eurusd")
def deploy(
    context: typer.Context,
    source: Annotated[
        Path | None, typer.Argument(help="Name or folder of a study or run; a policy's folder.")
    ] = None,
    *,
    name: Annotated[str, typer.Option("--name", help="Name, below ./deployments.")],
    force: Annotated[
        list[str] | None, typer.Option(help="A gate that may fail; may be repeated.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Reason, shown on every page.")] = "",
    watch: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Watch for better studies with these names."),
    ] = None,
    once: Annotated[bool, typer.Option("--run-once", help="With --watch: look once.")] = False,
    trust: Trust = False,
    background: Background = False,
    log: LogFile = None,
) -> None:
    """Put a policy in force under a name, where every gate holds.

    With --watch new studies are looked at as they end, until Ctrl-C, and once a day: a winner takes
    over where every gate holds, none can be forced, and it beats the policy in force on bars that
    no opening saw and neither was trained on.
    """
    from slipstream.markets.live import auto_promotion
    from slipstream.markets.live.deployment import Deployment
    from slipstream.markets.live.deployment_gates import deploy as put_in_force

    alone = (once or background or log) and not watch
    if (source is None) == (watch is None) or (watch and (force or trust)) or alone:
        raise ConfigError(
            "Write `slipstream deploy STUDY --name NAME`, or `slipstream deploy --watch 'PATTERN*' "
            "--name NAME`, which forces no gate and trusts no code of others."
        )
    if watch is not None:
        found = Deployment.from_name(name)
        if context.obj(context, auto_promotion.watch_folder(found), name=found.path):
            return
        auto_promotion.watch(watch, name, once=once, notify=print_text)
        return
    assert source is not None
    if force and not reason.strip():
        raise ConfigError('--force needs its reason: give --reason "...", which is kept with it.')
    forced = dict.fromkeys(force or (), reason)
    found = put_in_force(source, name, forced, notify=print_text, trust=trust)
    print_text(f"Version {found.current} of {found.path.name} is in force: {found.path}")


@app.command(rich_help_panel="Trading", epilog="Example: slipstream rollback eurusd")
def rollback(
    name: Name,
    to: Annotated[
        int | None,
        typer.Option(help="Version number; by default the previous version."),
    ] = None,
) -> None:
    """Put an earlier version of a deployment in force; its own account goes on."""
    from slipstream.markets.live.deployment import Deployment

    found = Deployment.open(name)
    found.switch(found.previous if to is None else to, "rollback")
    print_text(f"Version {found.current} of {found.path.name} is in force.")


@app.command(
    rich_help_panel="Trading", epilog="Example: slipstream paper eurusd --feed replay:data/new"
)
def paper(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(metavar="NAME", help="Of a deployment; or: report NAME, stop NAME."),
    ],
    feed: Annotated[
        str | None,
        typer.Option(help="replay:DIR, tail:FILE or ccxt:EXCHANGE; where it goes on, its own."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="DATE", help="First moment of a new account, UTC."),
    ] = None,
    longest_gap: Annotated[
        int, typer.Option(min=0, help="Missing bars after which the account pauses.")
    ] = 12,
    grace: Annotated[
        float, typer.Option(min=0.0, help="Seconds after a bar's end at which it has closed.")
    ] = 5.0,
    broker: Annotated[
        str | None,
        typer.Option(help="alpaca-paper: send orders to that paper account; none: send none."),
    ] = None,
    max_exposure: Annotated[
        float | None, typer.Option(help="Limit the holdings to this share of the equity.")
    ] = None,
    max_order: Annotated[
        float | None, typer.Option(help="Limit one purchase to this share of the equity.")
    ] = None,
    max_orders_per_day: Annotated[
        int | None, typer.Option(help="Limit the number of orders in a UTC day.")
    ] = None,
    max_daily_loss: Annotated[
        float | None,
        typer.Option(help="Stop purchases after this fall of the equity within a day, as a share."),
    ] = None,
    max_data_age: Annotated[
        float | None, typer.Option(help="Send no order later than this after a bar's end, seconds.")
    ] = None,
    max_clock_skew: Annotated[
        float | None,
        typer.Option(help="Send no order if the clocks differ by more than this, seconds."),
    ] = None,
    max_drift: Annotated[
        float | None,
        typer.Option(help="Send no order if a feature is further outside its training range."),
    ] = None,
    time_zone: Annotated[
        str | None,
        typer.Option(help="Zone of stamps that carry none in files of --feed, such as UTC."),
    ] = None,
    flat: Annotated[bool, typer.Option("--flat", help="With stop: sell what is held.")] = False,
    once: Annotated[
        bool, typer.Option("--run-once", help="End when what has closed is done.")
    ] = False,
    trust: Trust = False,
    background: Background = False,
    log: LogFile = None,
) -> None:
    """Lead a deployment's paper account bar by bar; `paper report NAME` shows it.

    A replay ends with its bars, a file that grows is watched until Ctrl-C or `slipstream stop`.
    `report` compares the account with what `slipstream evaluate NAME` makes of the same bars, bit
    for bit; `stop` throws the kill switch.
    """
    from slipstream.core.text import parse_utc
    from slipstream.markets.live.account_runner import paper as lead
    from slipstream.markets.live.account_runner import stop
    from slipstream.markets.live.deployment import Deployment
    from slipstream.markets.live.order_manager import Limits

    if words[0] == "report" and len(words) == 2 and feed is None:
        _report(words[1], trust)
        return
    if words[0] == "stop" and len(words) == 2 and feed is None:
        stop(words[1], flat, print_text)
        return
    if len(words) != 1 or flat:
        raise ConfigError(
            "Write `slipstream paper NAME --feed replay:DIR`, tail:FILE or ccxt:EXCHANGE; or "
            "`slipstream paper report NAME`; or `slipstream paper stop NAME --flat`."
        )
    given = {
        "max_exposure": max_exposure,
        "max_order": max_order,
        "max_orders_per_day": max_orders_per_day,
        "max_daily_loss": max_daily_loss,
        "max_data_age": max_data_age,
        "max_clock_skew": max_clock_skew,
        "max_drift": max_drift,
    }
    limits = Limits.from_options(given)
    if background or log:
        folder = Deployment.open(words[0]).path
        if context.obj(context, folder, words=[folder]):
            return
    decided = lead(
        words[0],
        feed,
        start=parse_utc(start),
        longest_gap=longest_gap,
        grace=grace,
        once=once,
        broker=broker,
        limits=limits,
        time_zone=time_zone,
        notify=print_text,
        trust=trust,
    )
    print_text(
        f"Decisions: {decided:,}. `slipstream paper report {shlex.quote(words[0])}` shows "
        "the account."
    )


def _report(name: str, trust: bool) -> None:
    """Gates, then each pass beside `evaluate`; exit code 1 where a bit differs."""
    from slipstream.core.text import stamp
    from slipstream.markets.live.account_comparison import compare
    from slipstream.markets.live.deployment import Deployment

    found = Deployment.open(name)
    policy, passes, broker = compare(name, trust)  # refuses what is no account
    facts = policy.metadata
    print_text(f"{found.path.name}, version {found.current}: {facts.get('label', '')}")
    for gate in facts["gates"]:
        forced = f"; FORCED: {gate['forced']}" if gate["forced"] and not gate["passed"] else ""
        print_text(f"  gate {gate['name']}: {gate['figure']}{forced}")
    begun, until = min(one.rows[0].time for one in passes), facts.get("trained_until")
    if until is not None and begun < until:
        print_text(
            f"  The policy was trained or chosen on bars up to {stamp(until)}: this begins before."
        )
    for one in passes:
        first, last = one.rows[0], one.rows[-1]
        print_text(
            f"{one.name}: {len(one.rows):,} decisions, {stamp(first.time)} to {stamp(last.time)} "
            f"UTC, equity {last.equity:,.2f}. `evaluate` has the same action and equity, bit for "
            f"bit, at {one.equal:,} of {one.both:,}; {one.fills:,} fills that cost "
            f"{one.costs:,.2f}; {one.closed:,.2f} when all is sold."
        )
        if one.first is not None:
            print_text(f"  They differ first at {stamp(one.first)} UTC.")
    if broker is not None:
        print_text(
            f"Broker: {broker.filled:,} of {broker.orders:,} orders filled after {broker.bars:,} "
            f"bars, {broker.missed:,} of which the next one overtook. Slippage against the mid at "
            f"which the rules fill: {_points(broker.slippage)}; the rules assume "
            f"{_points(broker.assumed)}. Tracking error: {_points(broker.tracking_error)} a bar."
        )
    if any(one.equal < one.both for one in passes):
        raise typer.Exit(1)


def _points(share: float | None) -> str:
    return "not known yet" if share is None else f"{1e4 * share:+.1f} bp"
