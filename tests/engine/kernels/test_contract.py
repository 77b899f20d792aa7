"""The suite that anybody can run on a kernel of his own: ours pass, broken ones are named."""

from pathlib import Path

import pytest

from slipstream.core.errors import KernelError
from slipstream.kernels.classic.probes import NAMES
from slipstream.kernels.env_checker import check_environment
from slipstream.kernels.kernel_registry import list_kernels, load_kernel

KERNELS = Path(__file__).parents[1] / "samples"


LOADED = ("forex", "portfolio", "probes")  # they need settings, and have tests of their own
SLOW = ("hockey",)  # a minute of compiling


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
        for name in list_kernels()
        if name not in LOADED
    ],
)
def test_built_in(name):
    check_environment(load_kernel(name))


@pytest.mark.parametrize("probe", NAMES)
def test_probes(probe):
    check_environment(load_kernel("probes"), {"probe": probe}, steps=50)


@pytest.mark.parametrize("name", ["clock", "duel", "masked"])
def test_kernels_of_the_tests(name):
    check_environment(load_kernel(str(KERNELS / f"{name}.py")), steps=40)


BROKEN = {
    "impure": (
        "    out[0] = float(s.time)",
        "    mine = s\n    mine.sum = s.sum + 1.0\n    out[0] = float(s.time)",
        "STATE.sum",
    ),
    "unwritten": ("    out[2] = float(p.number)\n", "", "left out[2] unwritten"),
    "outside": ("out[0] = float(s.time)", "out[0] = float(s.time) + math.inf", "is outside"),
    "action": (
        "s.time = s.time + 1",
        "s.time = s.time + 1\n    row = action\n    row[0] = 3",
        "wrote into the action",
    ),
    "data": (
        "s.time = s.time + 1",
        "s.time = s.time + 1\n    row = d.tenths\n    row[0] = 3.0",
        "Data is read-only",
    ),
    "flag": ("return reward, terminated", "return reward, 1", "`terminated` is a int"),
    "narrow": ("return reward, ", "return d.tenths[0], ", "the reward is a float32"),
    "infinite": ("return reward, ", "return reward * math.inf, ", "the reward is inf"),
    "index": ("s.seen[1, 0] = s.sum", "s.seen[2, 0] = s.sum", "raised IndexError"),
    "divisor": (
        "s.sum = s.sum + ",
        "s.sum = 1 / (s.time - 1) if False else 1 / 0 + ",
        "ZeroDivision",
    ),
    "endless": (
        "s.time = s.time + 1",
        "s.time = s.time + 1\n    while s.time > 2:\n        s.sum = s.sum + 0.0",
        "no end after 3,000,000 lines; bound the loop",
    ),
    "metric": ('Metric("late")', 'Metric("lat")', "`lat` is not a field of STATE"),
    "split": ('{"train": params, "test"', '{"training": params, "test"', "`train` is required"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_kernels_are_named(tmp_path, name):
    old, new, message = BROKEN[name]
    text = (KERNELS / "clock.py").read_text()
    assert old in text
    path = tmp_path / "broken.py"
    path.write_text("import math\n" + text.replace(old, new))
    with pytest.raises(KernelError) as error:
        check_environment(load_kernel(str(path)), steps=5)
    assert message in str(error.value), str(error.value)


def test_a_difference_between_backends_is_named(tmp_path):
    """float32 that slips past the checker: a local alias of the array."""
    text = (KERNELS / "clock.py").read_text()
    old = "s.sum = s.sum + float(action[0]) * float(d.tenths[0])"
    assert old in text
    path = tmp_path / "narrow.py"
    path.write_text(text.replace(old, "row = d.tenths\n    s.sum = s.sum + row[0] * 0.3"))
    with pytest.raises(
        KernelError, match=r"interpreted and compiled differ at step \d.*`float\(\)`"
    ):
        check_environment(load_kernel(str(path)), steps=20)
