"""A user's own kernel is compiled with checks: what goes wrong in a rare state is named, whoever
steps it, and nothing beyond an array is read or written."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest

from slipstream.core.errors import KernelError
from slipstream.kernels.compiler import bounds_checked_functions
from slipstream.kernels.env_checker import allocate_buffers, random_actions
from slipstream.kernels.kernel_registry import list_kernels, load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.loop import HOLD
from slipstream.kernels.vector_env import member_indices

KERNELS = Path(__file__).parents[1] / "samples"

# name: (code, line of clock.py, what follows it, function, what was wrong); the kernel has them all
# and goes wrong where its config says so.
RARE = {
    "observation written": (
        -1,
        "    out[3] = s.seen[1, 0]",
        "    if s.time > 6 and p.nan_at == -1:\n        out[60] = 1.0",
        "observe",
        "`out[60]` raised IndexError: index 60 is out of bounds for axis 0 with size 4",
    ),
    "far beyond": (
        -2,
        "    out[3] = s.seen[1, 0]",
        "    if s.time > 6 and p.nan_at == -2:\n        out[9000000] = 1.0",
        "observe",
        "`out[9000000]` raised IndexError",
    ),
    "before the beginning": (
        -3,
        "    s.seen[1, 0] = s.sum",
        "    if p.nan_at == -3:\n        s.seen[1 - s.time, 1] = 0.0",
        "step",
        "`s.seen[1 - s.time, 1]` raised IndexError: index -3",
    ),
    "state": (
        -4,
        "    s.seen[1, 0] = s.sum",
        "    if s.time > 6 and p.nan_at == -4:\n        s.words[s.time] = s.key",
        "step",
        "`s.words[s.time]` raised IndexError: index 7 is out of bounds for axis 0 with size 2",
    ),
    "action": (
        -5,
        "    s.seen[1, 0] = s.sum",
        "    if s.time > 6 and p.nan_at == -5:\n        s.sum = float(action[1])",
        "step",
        "`action[1]` raised IndexError",
    ),
    "data": (
        -6,
        "    s.seen[1, 0] = s.sum",
        "    if s.time > 6 and p.nan_at == -6:\n        s.sum = late(d, s.time)",
        "late",
        "`d.tenths[i]` raised IndexError: index 7",
    ),
    "start": (
        -7,
        "    s.start = uniform(s)",
        "    if s.start > 0.8 and p.nan_at == -7:\n        s.words[2] = s.key",
        "reset",
        "`s.words[2]` raised IndexError",
    ),
    "end": (
        -8,
        "    s.late = s.time > 2",
        "",
        "finalize_episode",
        "`s.seen[2, 0]` raised IndexError",
    ),
    "observation of nothing": (
        -9,
        "    out[3] = s.seen[1, 0]",
        "    if s.time > 6 and p.nan_at == -9:\n        out[3] = math.nan",
        "",
        "`observe` wrote nan into out[3]",
    ),
    "endless observation": (
        -10,
        "    out[3] = s.seen[1, 0]",
        "    if s.time > 6 and p.nan_at == -10:\n        out[1] = -math.inf",
        "",
        "`observe` wrote -inf into out[1]",
    ),
}
HELPERS = """

def late(d, i):
    return float(d.tenths[i])


def finalize_episode(s, p, d):
    if p.nan_at == -8:
        s.seen[2, 0] = 0.0
"""


@pytest.fixture(scope="module")
def rare(tmp_path_factory):
    """One kernel with all of them: it is compiled once."""
    text = (KERNELS / "clock.py").read_text()
    for _, line, more, _, _ in RARE.values():
        assert f"{line}\n" in text
        text = text.replace(f"{line}\n", f"{line}\n{more}\n" if more else f"{line}\n", 1)
    path = tmp_path_factory.mktemp("kernels") / "rare.py"
    path.write_text("import math\n" + text + HELPERS)
    return load_kernel(str(path))


def loaded_of(kernel, name, records):
    return kernel.load(kernel.configure({"records": records, "nan_at": RARE[name][0]}))


def step_until_it_ends(env, steps=60):
    out = allocate_buffers(env)
    draw = np.random.default_rng(0)
    env.reset(out.obs, out.mask)
    for t in range(steps):
        env.step(random_actions(env.spec, env.num_envs, draw, out.mask), out, t)


def assert_named(message, name, kernel):
    _, _, _, function, words = RARE[name]
    path = kernel.module.__file__
    lines = Path(path).read_text().splitlines()
    assert words in message, message
    assert str(path) in message and "`rare`" in message and "\n" not in message
    assert "environment " in message and "seed 7" in message
    if function:
        assert f"in `{function}`" in message
        found = int(message.removeprefix(f"{path}:").partition(":")[0])
        part = words.partition("`")[2].partition("`")[0]
        assert part in lines[found - 1]


@pytest.mark.parametrize("name", RARE)
def test_rare_states(rare, name, backend):
    loaded = loaded_of(rare, name, [[12, 0]])
    env = KernelVectorEnv(rare, loaded, *member_indices([7], 9), backend=backend)
    with pytest.raises(KernelError) as error:
        step_until_it_ends(env)
    assert_named(str(error.value), name, rare)


def test_only_kernels_of_others_are_checked():
    """Those that are built in are run with checks by the tests, at no cost to anybody else."""
    assert not any(bounds_checked_functions(load_kernel(name)) for name in list_kernels())
    own = load_kernel(str(KERNELS / "clock.py"))
    called = {"reset", "step", "observe", "mask", "prefetch", "finalize_episode"}
    assert bounds_checked_functions(own) == called
    # Every function of a kernel that the loop calls is among them.
    text = (Path(__file__).parents[3] / "src/slipstream/kernels/compiler.py").read_text()
    names = {n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant)}
    assert called <= names


AT_THE_END, AT_THE_START = "s.time < 5", "s.time > 0"  # allow nothing then: an episode ends at 5
ALLOWED = (
    *("s.time < 4", "choice < 2 or s.time < 4", "choice > 1 or s.time < 4"),
    *(AT_THE_END, AT_THE_START),
)


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """Function: what is allowed -> a kernel with all of them, compiled once, and what it loads."""
    text = (KERNELS / "masked.py").read_text()
    which = " or ".join(f"(p.case == {case} and ({one}))" for case, one in enumerate(ALLOWED))
    for old, new in {
        "out[choice] = choice <= max(s.time, 2)": f"out[choice] = {which}",
        "class Config(config.Config):\n    pass": "class Config(config.Config):\n    case: int",
        "class Params(NamedTuple):\n    pass": "class Params(NamedTuple):\n    case: int",
        "Params()": "Params(config.case)",
    }.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    path = tmp_path_factory.mktemp("kernels") / "rare.py"
    path.write_text(text)
    kernel = load_kernel(str(path))
    return lambda allowed: (kernel, kernel.load(kernel.Config(case=ALLOWED.index(allowed))))


@pytest.mark.parametrize(
    ("condition", "component"),
    [("s.time < 4", 0), ("choice < 2 or s.time < 4", 1), ("choice > 1 or s.time < 4", 0)],
)
def test_a_mask_that_allows_nothing(masked, condition, component, backend):
    env = KernelVectorEnv(*masked(condition), *member_indices([7], 3), backend=backend)
    with pytest.raises(KernelError, match=rf"`mask` allows nothing for action\[{component}\]"):
        step_until_it_ends(env)


def test_nothing_need_be_allowed_after_the_last_step(masked, backend):
    for mode in ({}, {"autoreset_mode": HOLD}):
        env = KernelVectorEnv(*masked(AT_THE_END), *member_indices([7], 3), backend=backend, **mode)
        step_until_it_ends(env)


def test_a_start_that_allows_nothing(masked, backend):
    env = KernelVectorEnv(*masked(AT_THE_START), *member_indices([7], 9), backend=backend)
    with pytest.raises(KernelError, match="`mask` allows nothing"):
        env.reset(allocate_buffers(env).obs, allocate_buffers(env).mask)


@pytest.mark.slow
def test_the_start_of_discrete_is_added_to_what_the_kernel_gets(tmp_path, make, steps, backend):
    """`Discrete(n, start=5)` hands 5 to n + 4 on: an array of n would be read beyond its end."""
    text = (KERNELS / "clock.py").read_text()
    path = tmp_path / "rare.py"
    text = text.replace("spaces.Discrete(5)", "spaces.Discrete(2, start=5)")
    path.write_text(text.replace("s.seen[1, 0] = s.sum", "s.seen[int(action[0]) - 5, 0] = s.sum"))
    kernel = load_kernel(str(path))
    env = KernelVectorEnv(
        kernel, kernel.load(kernel.Config()), *member_indices([7], 4), backend=backend
    )
    step_until_it_ends(env)
    path.write_text(text.replace("s.seen[1, 0] = s.sum", "s.seen[int(action[0]), 0] = s.sum"))
    kernel = load_kernel(str(path))
    env = KernelVectorEnv(
        kernel, kernel.load(kernel.Config()), *member_indices([7], 4), backend=backend
    )
    with pytest.raises(KernelError, match=r"`s.seen\[int\(action\[0\]\), 0\]` raised IndexError"):
        step_until_it_ends(env)


FLAGS = """
def step(s: Any, action: Any, p: Any, d: Any) -> tuple[float, bool, bool]:
    s.time = s.time + 1
    s.on[s.time % 3] = action[0] > 2
    s.late = s.on[0] and not s.on[1]
    s.grid[1, 0] = s.on[2] == s.late
    many = 0
    for i in range(3):
        if s.on[i]:
            many += 1
    return float(many), s.grid[1, 0] and s.time > 4, False
"""


def test_fixed_arrays_of_bool(tmp_path):
    """As docs/guides/custom-environment.md has it: any of the four types may be a fixed array."""
    text = (KERNELS / "clock.py").read_text()
    head, _, rest = text.partition("def step(")
    tail = rest.partition("\n\n\n")[2]
    text = head + FLAGS.strip() + "\n\n\n" + tail
    text = text.replace(
        '("late", "?"),', '("late", "?"), ("on", "?", (3,)), ("grid", "?", (2, 2)),'
    )
    text = text.replace("out[3] = s.seen[1, 0]", "out[3] = 1.0 if s.on[1] else 0.0")
    path = tmp_path / "flags.py"
    path.write_text(text)
    from slipstream.kernels.env_checker import check_environment

    kernel = load_kernel(str(path))
    check_environment(kernel, {"records": [[0, 9]]}, steps=60)
    env = KernelVectorEnv(kernel, kernel.load(kernel.Config()), *member_indices([7], 4))
    step_until_it_ends(env, 7)
    state = env.get_state()
    assert state["state.on"].dtype == np.bool_ and state["state.on"].any()
    assert math.isfinite(state["episode_state.episode_return"].sum())
