"""Which backend a run's copies are stepped by; it changes no result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slipstream.core.errors import ConfigError, SlipstreamError
from slipstream.kernels.vector_env import member_indices
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.episodes import lost_sentence
from slipstream.training.environments.machine_file import Tunable, recall
from slipstream.training.settings.config import RunConfig

if TYPE_CHECKING:
    from slipstream.training.runs.run import Run

_KEPT = 20  # faults whose texts a run keeps
_LONGEST = 2_000  # characters of one


def resolve_backend(config: RunConfig, environment: Environment) -> tuple[RunConfig, str | None]:
    """The config with one backend, and a sentence where another one was wanted first.

    Nothing but the way of stepping is ever replaced, and only where `{try: [...]}` asks for it.

    Raises:
        ConfigError: the environment has no such backend; none of those to be tried works.
    """
    wanted = config.training.backend
    if isinstance(wanted, str):
        environment.kind.chosen_backend(wanted)
        return config, None
    failed = []
    for name in wanted["try"]:
        try:
            environment.copies(*member_indices([0], 1), name).close()
        except SlipstreamError as error:
            failed.append(f"`{name}` does not work here ({error})")
            continue
        said = f"Backend `{name}` steps the copies: {'; '.join(failed)}." if failed else None
        return config.with_training(backend=name), said
    raise ConfigError(f"None of the backends in training.backend works: {'; '.join(failed)}")


def as_measured(config: RunConfig, environment: Environment) -> tuple[Environment, str | None]:
    """The same environment, stepped as the machine file says where the config leaves that open.

    Args:
        config: whose `num_envs` is a number.
        environment: the config's.

    Returns:
        It, and a sentence about what was found there or passed over; None where there is nothing.
    """
    training = config.training
    copies = int(training.num_envs)
    if training.members > 1 or training.backend != "auto":
        return environment, None  # members share the cores by shards
    one_thread = config.agent.parts(copies) == 1 or config.agent.replay(copies) is not None
    if environment.kind.compiled and one_thread:
        return environment, None  # trains them, but for updates from a replay
    tunable = environment.part(Tunable)
    identity = None if tunable is None else tunable.identity
    if tunable is None or identity is None:
        return environment, None
    measured, passed_over = recall(identity)
    if measured is None:
        return environment, passed_over
    environment = tunable = replace(tunable, measured=measured)
    way = tunable.way(copies)
    if way is None:
        return environment, (
            f"`slipstream tune-machine` measured {environment.name} on {measured.date}, but not "
            f"with about {copies} copies: `auto` goes by the time that a step takes."
        )
    noun = "thread" if way.backend == "compiled" else "worker"
    workers = int(training.workers) if training.workers != "auto" else way.workers
    many = "" if way.backend == "serial" else f", {workers} {noun}{'' if workers == 1 else 's'}"
    said = f"backend: {way.backend}{many}, as `slipstream tune-machine` measured on {measured.date}"
    return environment, f"{said}."


def note_faults(run: Run, lists: Sequence[Sequence[Any]]) -> None:
    """Says and records what failed in copies or their processes since the last call."""
    faults = [fault for one in lists for fault in one]
    said = lost_sentence(faults)
    if said:
        run.say(said)
    texts = [str(fault)[:_LONGEST] for fault in faults if fault.kind != "given up"]
    if not texts:
        return
    known = run.provenance.get("faults", {"number": 0, "last": []})
    number = known["number"] + len(texts)
    run.record(faults={"number": number, "last": [*known["last"], *texts][-_KEPT:]})
    first = texts[0].splitlines()[0]
    run.say(
        f"{len(texts)} failures of copies or their processes ({number} in this run), the first: "
        f"{first} Their steps are not learned from, their episodes count as truncated; the texts "
        "are in provenance.json."
    )
