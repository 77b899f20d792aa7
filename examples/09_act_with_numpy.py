"""Read and run a saved policy with NumPy, JSON and safetensors alone.

Another language must implement `act` only; docs/guides/policies.md describes the files. Each line
of output has the action of `act` and that of `slipstream.load_policy`.

python examples/09_act_with_numpy.py [STEPS]

Output:

    [0] 0
    [1] 1
    [1] 1
    [1] 1
    [0] 0
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


def load(folder):
    """Return tensors and manifest of `runs/RUN/best/member-000`, or of a study's `policy`."""
    manifest = json.loads((Path(folder) / "manifest.json").read_text())["policy"]
    assert manifest["format"] == 2 and manifest["network"]["kind"] == "mlp"
    return load_file(Path(folder) / "state.safetensors"), manifest


def act(tensors, manifest, row, mask=None):
    """Return the actions for one flat observation; mask: bool, the allowed discrete actions."""
    mean, factor = tensors["observation.mean"], tensors["observation.inverse_std"]
    limit, network = manifest["observation"]["clip"], manifest["network"]
    x = np.clip((np.asarray(row, np.float32).ravel() - mean) * factor, -limit, limit)
    for i in range(len(network["net_arch"]) + 1):
        if i:
            x = np.tanh(x) if network["activation"] == "tanh" else np.maximum(x, 0)
        x = x @ tensors[f"weights.actor.{i}.weight"] + tensors[f"weights.actor.{i}.bias"]
    action = manifest["action"]
    if manifest["head"] in ("logits", "q"):
        x = x[: sum(action["sizes"])]  # the last output of a dueling network is the state value
        if mask is not None:
            x = np.where(mask, x, -np.inf)
        parts = np.split(x, np.cumsum(action["sizes"])[:-1])
        return [
            int(part.argmax()) + start for part, start in zip(parts, action["start"], strict=True)
        ]
    low, high = (np.array(action[key], float) for key in ("low", "high"))  # "inf" means infinity
    x = x[: len(low)]  # SAC: the log deviations follow the means
    if manifest["head"] in ("squashed_gaussian", "tanh"):
        x = np.tanh(x)
    bounded = np.isfinite(low) & np.isfinite(high)
    low_, high_ = np.where(bounded, low, -1), np.where(bounded, high, 1)
    return np.clip(x * (high_ - low_) / 2 + (high_ + low_) / 2, low, high).tolist()


if __name__ == "__main__":
    import slipstream  # to train a policy

    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    run = slipstream.train("cartpole", total_timesteps=steps, out="runs/numpy")
    tensors, manifest = load(run.path / "best/member-000")
    for row in np.random.default_rng(0).uniform(-0.2, 0.2, (5, 4)):
        print(act(tensors, manifest, row), slipstream.load_policy(run).act(row))
