"""Each mistake in what `load`, `spec` and their like return: one paragraph with what to return."""

import pytest

from slipstream.core.errors import ConfigError, KernelError
from slipstream.kernels.kernel_registry import load_kernel

SPEC = """
def spec(p, d):
    space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    return {}
"""
METRIC = "from slipstream.kernels.spec import Metric"
BOX = "spaces.Box(0.0, 1.0, (1,), np.float32)"

# what `spec` returns: words of the message
SPECS = {
    "None": ("`spec` returned None", "return EnvSpec("),
    '{"observation": space}': ("`spec` returned {'observation'", "return EnvSpec("),
    "space, spaces.Discrete(2)": ("`spec` returned", "return EnvSpec("),
    'EnvSpec(spaces.Dict({"a": space}), spaces.Discrete(2))': (
        "observation Dict(",
        "spaces.Box(low",
    ),
    "EnvSpec(space, space.shape)": ("the action (1,) (a tuple)", "spaces.Discrete(n)"),
    "EnvSpec(3, spaces.Discrete(2))": ("no space of Gymnasium", "spaces.Box(low"),
    "EnvSpec(spaces.Discrete(4), spaces.Discrete(2))": (
        "observation Discrete(4)",
        "spaces.Box(low",
    ),
    "EnvSpec(spaces.Box(0.0, 1.0, (1,), np.float64), spaces.Discrete(2))": (
        "float64",
        "np.float32",
    ),
    "EnvSpec(spaces.Box(0.0, 1.0, (), np.float32), spaces.Discrete(2))": (
        "an observation of shape ()",
        "shape (1,) for a single number",
    ),
    "EnvSpec(space, spaces.Box(0.0, 1.0, (), np.float32))": ("an action of shape ()", "action[0]"),
    "EnvSpec(space, spaces.MultiBinary(3))": ("the action MultiBinary(3)", "spaces.MultiDiscrete"),
    'EnvSpec(space, spaces.Discrete(2), metrics=("x",))': ("returned 'x' among", "Metric("),
    'EnvSpec(space, spaces.Discrete(2), metrics=Metric("x"))': ("not a tuple", "Metric("),
    'EnvSpec(space, spaces.Discrete(2), metrics="x")': ("not a tuple", "Metric("),
    'EnvSpec(space, spaces.Discrete(2), metrics=(Metric("y"),))': ("`y` is not a field of STATE",),
    'EnvSpec(space, spaces.Discrete(2), metrics=(Metric("x", "avg"),))': (
        "'avg'",
        "the unit of one number",
        "`finalize_episode(s, p, d)`",
    ),
    'EnvSpec(space, spaces.Discrete(2), metrics=(Metric("x", 3),))': ("the unit of one number",),
    'EnvSpec(space, spaces.Discrete(2), trace="x")': ('trace=("field",)',),
    'EnvSpec(space, spaces.Discrete(2), trace=("y",))': ("the trace `y` is not a field",),
    "EnvSpec(space, spaces.Discrete(2), players=0)": ("players=0", "1 or more"),
    "EnvSpec(space, spaces.Discrete(2), max_episode_steps=0)": (
        "`max_episode_steps` must be a positive integer, got 0",
        "None",
    ),
    "EnvSpec(space, spaces.Discrete(2), max_episode_steps=-1)": (
        "`max_episode_steps` must be a positive integer, got -1",
        "None",
    ),
    "EnvSpec(space, spaces.Discrete(2), fixed_mean=np.zeros(3))": ("fixed_mean of shape (3,)",),
    "EnvSpec(space, spaces.Discrete(0))": ("`EnvSpec(space, spaces.Discrete(0))`", "in `spec`"),
    'EnvSpec(space, spaces.Discrete("2"))': ("in `spec`", "raised"),
}


@pytest.mark.parametrize("answer", SPECS)
def test_spec(write_kernel, answer):
    path = write_kernel(top=METRIC, spec=SPEC.format(answer))
    kernel = load_kernel(str(path))
    loaded = kernel.load(kernel.Config())
    with pytest.raises(KernelError) as error:
        kernel.spec(loaded.params["train"][0], loaded.data)
    message = str(error.value)
    expected = (str(path), "`mine`", *SPECS[answer])
    if "IndexError" in message or " raised " in message:
        expected = (str(path), "`mine`", "in `spec`")
    assert all(word in message for word in expected), message
    assert "\n" not in message


# what `load` returns: words of the message
LOADS = {
    "None": ("`load` returned None", "return kernel.KernelData("),
    "data": ("`load` returned Data(", "return kernel.KernelData("),
    "kernel.KernelData(None, params)": ("None as KernelData.data", "Data(...)"),
    "kernel.KernelData(data, (Params(1.0),))": (
        "as KernelData.params",
        '{"train": (Params(...),)}',
    ),
    'kernel.KernelData(data, {"training": (Params(1.0),)})': ("the splits training", '{"train"'),
    'kernel.KernelData(data, {"train": Params(1.0)})': (
        "1.0 (a float) within split",
        "has a comma",
    ),
    'kernel.KernelData(data, {"train": ()})': ("`train`", "at least one"),
    'kernel.KernelData(data, {"train": (1.0,)})': ("1.0 (a float) within", "Params(...)"),
    'kernel.KernelData(data, {"train": (Params("1"),)})': ("Params.width as '1' (a str)", "float"),
    'kernel.KernelData(Data([1.0]), {"train": (Params(1.0),)})': ("Data.table", "NumPy array"),
    'kernel.KernelData(Data(np.array(["a"])), {"train": (Params(1.0),)})': (
        "Data.table",
        "float64",
    ),
    'kernel.KernelData(data, params, state=np.dtype([("x", "f8")]))': ("`state`", "those of STATE"),
    'open("/does/not/exist")': ("No such file", "in `load`", '`open("/does/not/exist")`'),
    "1 / 0": ("`1 / 0` raised ZeroDivisionError", "in `load`"),
    "exit(0)": ("SystemExit", "must not end the program"),
}


@pytest.mark.parametrize("answer", LOADS)
def test_load(write_kernel, answer):
    text = f"""
        def load(config):
            data = Data(np.ones(3, np.float32))
            params = {{"train": (Params(config.width),)}}
            return {answer}
        """
    path = write_kernel(load=text)
    kernel = load_kernel(str(path))
    with pytest.raises(KernelError) as error:
        kernel.load(kernel.Config())
    message = str(error.value)
    assert all(word in message for word in (str(path), "`mine`", *LOADS[answer])), message
    assert "\n" not in message


def test_data_cannot_be_written(write_kernel):
    kernel = load_kernel(str(write_kernel()))
    data = kernel.load(kernel.Config()).data
    with pytest.raises(ValueError, match="read-only"):
        data.table[0] = 2.0


@pytest.mark.parametrize(
    ("part", "text", "words"),
    [
        ("Config", "class Config:\n    width = 1.0", "class Config(config.Config)"),
        ("Params", "class Params:\n    width = 1.0", "class Params(NamedTuple)"),
        ("Data", "Data = dict", "class Data(NamedTuple)"),
        ("top", 'DEFAULT_HYPERPARAMS = {"ppo": {"agents": {}}}', '{"ppo": {"agent": {...}'),
        ("load", "def load():\n    pass", "`load` takes 0 arguments; the contract is load(config)"),
        ("spec", "def spec(p):\n    pass", "`spec` takes 1 argument; the contract is spec(p, d)"),
        ("spec", "spec = 3", "`spec` must be a function"),
        ("observe", "def observe(s, p, d, out):\n    x = s.x", "`observe` writes nothing"),
        ("observe", "def observe(s, p, d, out):\n    pass", "`observe` writes nothing"),
        ("observe", "def observe(s, p, d, out):\n    s.x = 1.0\n    out[0] = s.x", "`s.x` is set"),
        ("top", "def mask(s, p, d, out):\n    return True", "`mask` writes nothing"),
        ("step", "def step(s, action, p, d):\n    s.x = 1.0", "`step` returns nothing"),
        ("step", "def step(s, action, p, d):\n    return", "`step` returns nothing"),
    ],
)
def test_parts(write_kernel, part, text, words):
    path = write_kernel(**{part: text})
    with pytest.raises(KernelError) as error:
        load_kernel(str(path))
    assert words in str(error.value) and str(path) in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "def fill(x, row):\n    row[0] = x\n\n\ndef observe(s, p, d, out):\n    fill(s.x, out)",
        "def observe(s, p, d, out):\n    row = out\n    row[0] = s.x",
        "def observe(s, p, d, row):\n    for i in range(1):\n        row[i] = s.x",
    ],
)
def test_ways_to_write_an_observation(write_kernel, text):
    assert load_kernel(str(write_kernel(observe=text))).name == "mine"


def test_a_file_that_ends_the_program(write_kernel):
    with pytest.raises(KernelError, match=r"mine\.py:\d+ cannot be imported: SystemExit"):
        load_kernel(str(write_kernel(top="raise SystemExit(0)")))


def test_a_validator_that_raises(write_kernel):
    text = """
        class Config(config.Config):
            width: float = 1.0

            def model_post_init(self, context):
                {}["missing"]
        """
    kernel = load_kernel(str(write_kernel(Config=text)))
    with pytest.raises(KernelError, match=r"mine\.py:\d+: .*raised KeyError"):
        kernel.configure({})
    with pytest.raises(ConfigError, match="did you mean `width`"):
        kernel.configure({"widht": 1.0})
