"""Trained policies as opponents: weights and scales in the form that the loops read."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.core.memory import zeros
from slipstream.core.spec import Spec
from slipstream.environments.self_play.brains import Brains
from slipstream.files import checkpoint
from slipstream.files.best_policies import BEST, BestPolicies
from slipstream.nets.actions import ActionMap
from slipstream.nets.layers import BLOCK, INPUTS, OUTPUTS
from slipstream.nets.networks import MlpNetwork
from slipstream.nets.observations import LIMIT
from slipstream.nets.policy import Policy
from slipstream.nets.policy_file import unpack


def is_file(name: str) -> bool:
    """Whether a name is something on disk, or looks like it."""
    return name.endswith(".onnx") or Path(name).expanduser().exists()


def brains_of(
    policy: Policy,
    weights: NDArray[np.float32],
    mean: NDArray[np.float32],
    inverse_std: NDArray[np.float32],
    drawn: bool,
) -> Brains:
    """Networks of a policy's form.

    Args:
        policy: gives the form.
        weights: [n, P]; mean, inverse_std: [n, D]; they are not copied.
        drawn: actions are drawn, where the policy's head is a distribution that is drawn from.

    Raises:
        ConfigError: it is no network of fully connected layers.
    """
    network, actions = policy.network, policy.actions
    if not isinstance(network, MlpNetwork):
        raise images()
    distribution = actions.head in ("logits", "gaussian")
    sizes, start, half, middle, low, high = actions.arrays
    log_std = policy.parameters.offsets.get("log_std", -1)
    return with_space(
        Brains(
            weights=weights,
            table=network.tables[0],
            relu=network.activation == "relu",
            drawn=drawn and distribution,
            squashed=actions.squashed,
            log_std=log_std,
            mean=mean,
            inverse_std=inverse_std,
            limit=LIMIT,
            sizes=sizes,
            start=start,
            half=half,
            middle=middle,
            low=low,
            high=high,
            x=None,
            space=None,
        )
    )


def with_space(brains: Brains) -> Brains:
    """The same networks with buffers of their own: one for each thread that acts."""
    width = int(brains.table[0, INPUTS])
    x: NDArray[np.float32] = np.zeros((BLOCK, width), np.float32)
    x[:, brains.mean.shape[1]] = 1.0
    return brains._replace(x=x, space=zeros((BLOCK * int(brains.table[:, OUTPUTS].sum()),)))


def nobody(spec: Spec) -> Brains:
    """The outside of an action without any network: for the player that draws it."""
    sizes, start, half, middle, low, high = ActionMap(spec.action).arrays
    rows, line = np.zeros((0, 0), np.float32), np.zeros(0, np.float32)
    return Brains(
        *(rows, np.zeros((1, 5), np.int64), True, True, False, -1, rows, rows, LIMIT),
        *(sizes, start, half, middle, low, high, rows, line),
    )


def foreign_brains(name: str, spec: Spec, environment: str, drawn: bool) -> Brains:
    """The network of a run's best policy, of a policy's folder, or of an ONNX file.

    Args:
        name: where it is.
        spec: of one seat.
        environment: short name of the game.
        drawn: see `brains_of`.

    Raises:
        ConfigError: it is missing, or of another game or shape.
    """
    if name.endswith(".onnx"):
        from slipstream.environments.self_play.onnx_file import read_onnx

        found: Brains = read_onnx(Path(name).expanduser(), spec)
        return found
    policy = _policy(name)
    known = policy.conditions.get("environment")
    if known is not None and known != environment:
        raise ConfigError(
            f"The opponent {name} was trained on {known}, and this game is {environment}: name a "
            "policy of the same game."
        )
    own, here = policy.actions.description(), ActionMap(spec.action).description()
    if policy.observation_shape != spec.observation_shape or own != here:
        raise ConfigError(
            f"The opponent {name} sees {policy.observation_shape} and acts in {own}; a seat of "
            f"{environment} shows {spec.observation_shape} and takes {here}. Train it with the "
            "settings that are used here, or use those it was trained with."
        )
    if policy.scale is None:
        raise images()
    scale = policy.scale
    return brains_of(policy, policy.parameters.flat, scale.mean, scale.inverse_std, drawn)


def images() -> ConfigError:
    """What to say of networks with convolutions."""
    return ConfigError(
        "Opponents act by fully connected networks, and these observations are images: show "
        "numbers in `observe` instead, or train against the kernel's own players."
    )


def _policy(name: str) -> Policy:
    """Of a run (the best member's), or of a folder with a policy in it."""
    folder = Path(name).expanduser()
    if (folder / checkpoint.MANIFEST).is_file():
        tensors, manifest = checkpoint.load(folder)
        if "policy" not in manifest:
            raise ConfigError(
                f"The opponent {name} is a checkpoint of a whole training and holds no policy: "
                "name the run's directory, or a folder in its `best`."
            )
        return unpack(tensors, manifest["policy"])
    if not (folder / BEST).is_dir():
        raise ConfigError(
            f"The opponent {name} cannot play: it is not a run directory, for it has no "
            f"`{BEST}`. Name what `slipstream train` printed, a policy's folder or an .onnx file."
        )
    best = BestPolicies(folder, lambda said: print(said, file=sys.stderr))
    try:
        tensors, manifest = best.load(best.highest)
        return unpack(tensors, manifest["policy"])
    except CheckpointError as error:
        raise ConfigError(f"The opponent {name} cannot play: {error}") from error
