"""`slipstream policy`, `export` and `model-card`: inspect and share saved policies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.options import RunOrStudy
from slipstream.core.terminal import Trust, print_table, print_text

app = typer.Typer()
policies = typer.Typer(
    name="policy",
    no_args_is_help=True,
    epilog="Example: slipstream policy show runs/first",
)


@policies.callback(rich_help_panel="Policies")
def policy() -> None:
    """Inspect saved policies."""


app.add_typer(policies)
FILE_COMMANDS = ("export", "model-card")

Member = Annotated[
    int | None,
    typer.Option(min=0, help="Use this member's policy of the run.", show_default="the best"),
]


@policies.command(epilog="Example: slipstream policy show runs/first --member 2")
def show(path: RunOrStudy, member: Member = None) -> None:
    """Describe a policy's inputs, outputs, training and origin.

    PATH is a run, a study or a policy folder. No code from the folder is executed.
    """
    from slipstream.training.runs.policies import policy_metadata

    first, *rest = policy_metadata(_folder(path), member).items()
    print_table(first, rest)


@app.command(
    rich_help_panel="Policies", epilog="Example: slipstream export runs/first --onnx policy.onnx"
)
def export(
    path: RunOrStudy,
    onnx: Annotated[Path, typer.Option(help="Write this ONNX file.")],
    member: Member = None,
    opset: Annotated[int, typer.Option(help="Use this ONNX operator set version.")] = 17,
    trust: Trust = False,
) -> None:
    """Export a policy as an ONNX file.

    The graph contains observation scaling, action masking and action mapping. Its outputs are
    compared with the policy's on observations of the environment; differences up to 1e-5 are
    accepted.
    """
    from slipstream import api

    folder = _folder(path, acts=True)
    comparison = api.export(folder, onnx, member=member, opset=opset, trust=trust)
    print_text(f"ONNX: {onnx}, opset {opset}; inputs {', '.join(comparison.inputs)}")
    print_text(
        f"Compared on {comparison.observations:,} observations by {comparison.runtime}: "
        f"largest difference {comparison.max_difference:.1e}, tolerance "
        f"{comparison.tolerance:.0e}."
    )


@app.command(
    rich_help_panel="Policies", epilog="Example: slipstream model-card runs/first --out share"
)
def model_card(
    run: RunOrStudy,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the policy and a model card to this folder, ready to share."),
    ] = None,
    licence: Annotated[
        str | None,
        typer.Option(
            help="State this licence of the data.", show_default="LICENSE beside the prices"
        ),
    ] = None,
    trust: Trust = False,
) -> None:
    """Write a model card of a policy.

    A model card states the data, scores with confidence intervals, and limitations. It is card.md
    in the folder of the run or study, or README.md beside the policy in --out.
    """
    from slipstream import api

    print_text(f"Model card: {api.write_model_card(run, out=out, licence=licence, trust=trust)}")


def _folder(path: str, acts: bool = False) -> Path:
    """Return the folder of a run, study or policy, by path or name, or of a deployment's version.

    Raises:
        CheckpointError: the policy must act on a deployment account's bars, and it has none yet.
    """
    from slipstream.api.trained_runs import find_folder
    from slipstream.core.plugins import folder_kinds

    folder = find_folder(path)
    for kind in folder_kinds(folder):
        return kind.policy(folder, acts)
    return folder
