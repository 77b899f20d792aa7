"""`slipstream policy`, `export` and `card`: what a saved policy is, for people and programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.options import RunOrStudy
from slipstream.core.terminal import Trust, show_table, tell

app = typer.Typer()
policies = typer.Typer(name="policy", help="Looks at saved policies.", no_args_is_help=True)
app.add_typer(policies)
FILE_COMMANDS = ("export", "card")

Member = Annotated[
    int | None, typer.Option(min=0, help="Of a run: whose policy; the best one's unless given.")
]


@policies.command()
def show(path: RunOrStudy, member: Member = None) -> None:
    """Says what a policy sees and does, what it was trained under, and where it comes from.

    PATH is a run, a study or a policy's own folder. Nothing of it is run.
    """
    from slipstream.training.runs.policies import policy_metadata

    first, *rest = policy_metadata(_folder(path), member).items()
    show_table(first, rest)


@app.command()
def export(
    path: RunOrStudy,
    onnx: Annotated[Path, typer.Option(help="The file that is written.")],
    member: Member = None,
    opset: Annotated[int, typer.Option(help="Version of ONNX's operators.")] = 17,
    trust: Trust = False,
) -> None:
    """Writes a policy as an ONNX file that acts as it does: scaling, masks and actions inside.

    It is compared with the policy on observations of the environment first, to 1e-5.
    """
    from slipstream import api

    folder = _folder(path, acts=True)
    facts = api.export(folder, onnx, member=member, opset=opset, trust=trust)
    tell(f"ONNX: {onnx}, opset {opset}; inputs {', '.join(facts['inputs'])}")
    tell(
        f"Compared on {facts['observations']:,} observations by {facts['ran_by']}: the largest "
        f"difference is {facts['largest_difference']:.1e}, {facts['tolerance']:.0e} is allowed."
    )


@app.command()
def card(
    run: RunOrStudy,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder that is made of the policy and its card, to be handed on."),
    ] = None,
    licence: Annotated[
        str | None,
        typer.Option(help="Of the data; a file LICENSE beside the prices says it unless given."),
    ] = None,
    trust: Trust = False,
) -> None:
    """Writes a model card: what, on which data, scores with intervals, what was not shown.

    It is card.md in the run's or study's folder, or README.md beside the policy in --out.
    """
    from slipstream import api

    tell(f"Card: {api.write_card(run, out=out, licence=licence, trust=trust)}")


def _folder(path: str, acts: bool = False) -> Path:
    """The folder of a run, a study or a policy, by its path or a name; a deployment's version.

    Raises:
        CheckpointError: it is to act on the bars of a deployment's account, which has none yet.
    """
    from slipstream.api.trained_runs import folder_of
    from slipstream.core.plugins import folder_kinds

    folder = folder_of(path)
    for kind in folder_kinds(folder):
        return kind.policy(folder, acts)
    return folder
