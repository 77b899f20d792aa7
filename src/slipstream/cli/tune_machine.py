"""`slipstream tune-machine`: a config with the number of copies that is fastest here."""

from __future__ import annotations

import typer

from slipstream.cli.arguments import Target


def tune_machine(target: Target) -> None:
    """Measures how many copies train fastest here, and prints the config with that number.

    slipstream tune-machine my.yaml > fast.yaml; more copies mean fewer updates in a budget, so look
    at the scores too.
    """
    from slipstream.cli.checkup import figures
    from slipstream.training.config import resolve
    from slipstream.training.factory import resolve_environment
    from slipstream.training.sizing import choose_num_envs
    from slipstream.training.speed import fewest_fast, measure_speeds

    config, _ = resolve(target, {"training.num_envs": "auto"}).seated()
    environment = resolve_environment(config.env_name, config.env_settings)
    speeds = measure_speeds(config, environment)
    chosen = fewest_fast(speeds)
    auto = choose_num_envs(config, environment)
    typer.echo(f"Steps per second by num_envs: {figures(speeds)}.", err=True)
    typer.echo(
        f"{chosen} copies are the fewest that are nearly fastest; auto is {auto.reason}.", err=True
    )
    typer.echo(config.with_training(num_envs=chosen).to_yaml(), nl=False)
