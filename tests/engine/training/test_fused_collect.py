"""Acting and stepping in one compiled call: the same bits and the same errors as one by one."""

from pathlib import Path

import pytest

import slipstream
from slipstream.core.errors import KernelError
from slipstream.kernels.fused import FusedLoop

KERNELS = Path(__file__).parents[1] / "samples"
AGENT = {"n_steps": 48, "batch_size": 48, "n_epochs": 1, "net_arch": [8]}


def train(folder, env, **training):
    config = {"env": env, "agent": AGENT, "evaluation": {"every": 1.0, "episodes": 2}}
    training = {"num_envs": 4, "total_timesteps": 3 * 4 * 48, **training}
    slipstream.train(config, out=folder, report=False, log=lambda _: None, **training)
    return slipstream.load_policy(folder)


@pytest.mark.parametrize(
    ("env", "members"),
    [
        ("cartpole", 3),
        (str(KERNELS / "masked.py"), 1),
        pytest.param("cartpole", 1, marks=pytest.mark.slow),
        pytest.param("pendulum", 1, marks=pytest.mark.slow),
        ("pendulum", 3),
        pytest.param(str(KERNELS / "masked.py"), 3, marks=pytest.mark.slow),
    ],
)
def test_same_bits_as_one_by_one(tmp_path, monkeypatch, env, members):
    runs = []
    made = FusedLoop.__init__
    monkeypatch.setattr(FusedLoop, "__init__", lambda *a: (runs.append(1), made(*a))[1])
    fused = train(tmp_path / "fused", env, members=members, shards=1)
    assert runs
    monkeypatch.setattr(FusedLoop, "is_supported", lambda env: False)
    alone = train(tmp_path / "alone", env, members=members, shards=1)
    assert fused.parameters.flat.tobytes() == alone.parameters.flat.tobytes()
    metrics = [(tmp_path / run / "metrics.csv").read_text() for run in ("fused", "alone")]
    score = [[line.split(",")[3] for line in text.splitlines()] for text in metrics]
    assert score[0] == score[1]


BROKEN = {
    "reward": ("return 1.0, s.time", "return 1.0 if s.time < 4 else math.nan, s.time"),
    "observation": ("out[0] = float(s.time)", "out[0] = math.nan if s.time == 3 else 0.0"),
    "index": ("out[0] = float(s.time)", "out[0 if s.time < 3 else 7] = 0.0"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_what_nobody_can_train_on_has_the_same_words(tmp_path, monkeypatch, name):
    """A user's own kernel: copy, step, action and state are named either way."""
    text = (
        (KERNELS / "masked.py").read_text().replace("import numpy", "import math\n\nimport numpy")
    )
    kernel = tmp_path / "broken.py"
    assert BROKEN[name][0] in text
    kernel.write_text(text.replace(*BROKEN[name]))
    monkeypatch.setattr(  # it would be named there first
        "slipstream.training.environments.kernel_environment.KernelEnvironment.check",
        lambda *a, **k: False,
    )
    said = []
    for fits in (FusedLoop.is_supported, lambda env: False):
        monkeypatch.setattr(FusedLoop, "is_supported", fits)
        with pytest.raises(KernelError) as caught:
            train(tmp_path / f"run{len(said)}", str(kernel))
        said.append(str(caught.value))
    assert said[0] == said[1]
