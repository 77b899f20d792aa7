"""Kernel files with one thing wrong each, from the example that the docs show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from malformed import Case, writes

SHOP = (Path(__file__).parents[2] / "examples/kernels/shop.py").read_text(encoding="utf-8")
TRAIN = ("train", "{folder}/shop.py", "--no-report", "--total-timesteps", "2048")

# What is wrong: the text that is replaced, and by what.
CHANGES: dict[str, tuple[str, str]] = {
    "a syntax error": ("def reset(s, p, d):", "def reset(s, p, d:"),
    "an import that fails": ("import numpy as np", "import numpy as np\nimport no_such_module"),
    "an error while imported": ("CAPACITY, MOST", "1 / 0\nCAPACITY, MOST"),
    "SystemExit while imported": ("CAPACITY, MOST", "raise SystemExit\nCAPACITY, MOST"),
    "no reset": ("def reset(", "def begin("),
    "no step": ("def step(", "def advance("),
    "no observe": ("def observe(", "def look("),
    "no spec": ("def spec(", "def describe("),
    "no load": ("def load(", "def read("),
    "no STATE": ("STATE = ", "RECORD = "),
    "no Config": ("class Config(config.Config)", "class Settings(config.Config)"),
    "STATE is a list": ("STATE = np.dtype(", "STATE = list("),
    "STATE without key": ('("key", "u8"), ', ""),
    "STATE without counter": ('("counter", "u8"), ', ""),
    "STATE of float32": ('("lost", "f8")', '("lost", "f4")'),
    "STATE of int32": ('("stock", "i8")', '("stock", "i4")'),
    "STATE of text": ('("lost", "f8")', '("lost", "U8")'),
    "STATE of objects": ('("lost", "f8")', '("lost", "O")'),
    "STATE not aligned": (", align=True", ""),
    "an unknown STATE field": ("s.stock = integer", "s.stok = integer"),
    "an unknown Params field": ("p.delivery if", "p.delivry if"),
    "an unknown Data field": ("cost = STORAGE", "d.prices[0]\n    cost = STORAGE"),
    "reset with two arguments": ("def reset(s, p, d)", "def reset(s, p)"),
    "step with three arguments": ("def step(s, action, p, d)", "def step(s, action, p)"),
    "observe with three arguments": ("def observe(s, p, d, out)", "def observe(s, p, d)"),
    "spec with one argument": ("def spec(p, d)", "def spec(p)"),
    "load without argument": ("def load(config)", "def load()"),
    "load returns nothing": ("    return kernel.KernelData", "    kernel.KernelData"),
    "load returns a tuple": ("return kernel.KernelData(", "return tuple(("),
    "load without train": ('{"train": (', '{"training": ('),
    "load with an empty train": ("(Params(config.delivery),)", "()"),
    "load with params of another kind": ("(Params(config.delivery),)", "(3.0,)"),
    "load raises": ("    return kernel", '    raise ValueError("no")\n    return kernel'),
    "load exits": ("    return kernel", "    raise SystemExit(0)\n    return kernel"),
    "text in Params": ("Params(config.delivery)", 'Params("two")'),
    "nan in Params": ("Params(config.delivery)", 'Params(float("nan"))'),
    "spec returns nothing": ("    return EnvSpec(", "    EnvSpec("),
    "spec returns a dict": ("    return EnvSpec(stock", "    return dict(a=stock"),
    "spec raises": ("    return EnvSpec(", '    raise KeyError("no")\n    return EnvSpec('),
    "a Dict observation": ("return EnvSpec(stock,", 'return EnvSpec(spaces.Dict({"a": stock}),'),
    "an observation of text": ("return EnvSpec(stock,", "return EnvSpec(spaces.Text(3),"),
    "an observation of 3e9 numbers": ("Box(0.0, 1.0, (1,)", "Box(0.0, 1.0, (3 * 10**9,)"),
    "a Box from another library": ("return EnvSpec(stock,", "return EnvSpec((0.0, 1.0),"),
    "a mistyped metric": ('Metric("lost", "units")', 'Metric("losst", "units")'),
    "a metric's unknown kind": ('Metric("lost", "units")', 'Metric("lost", "units", "avg")'),
    "metrics that are text": ('metrics=(Metric("lost", "units"),)', 'metrics=("lost",)'),
    "a time limit of 0": ("max_episode_steps=60", "max_episode_steps=0"),
    "a time limit of -1": ("max_episode_steps=60", "max_episode_steps=-1"),
    "a time limit of text": ("max_episode_steps=60", 'max_episode_steps="60"'),
    "step returns two values": ("cost, False, False", "cost, False"),
    "step returns four values": ("cost, False, False", "cost, False, False, {}"),
    "step returns nothing": ("    return sold - cost, False, False", "    sold - cost"),
    "step returns text": ("sold - cost, False, False", '"sold", False, False'),
    "step returns nan": ("sold - cost, False, False", "float(np.nan), False, False"),
    "step returns infinity": ("sold - cost, False, False", "float(np.inf), False, False"),
    "step divides by zero": ("cost = STORAGE", "sold // (wanted - wanted)\n    cost = STORAGE"),
    "step raises": ("    ordered = int", '    raise ValueError("x")\n    ordered = int'),
    "step recurses": ("    ordered = int", "    step(s, action, p, d)\n    ordered = int"),
    "step loops for ever": ("    ordered", "    while True:\n        pass\n    ordered"),
    "step prints": ("    ordered = int", '    print("here")\n    ordered = int'),
    "step opens a file": ("    ordered = int", '    open("x")\n    ordered = int'),
    "step builds a list": ("    ordered = int", "    seen = [1, 2]\n    ordered = int"),
    "step builds a dict": ("    ordered = int", '    seen = {"a": 1}\n    ordered = int'),
    "step formats text": ("    ordered = int", '    seen = f"{action[0]}"\n    ordered = int'),
    "step draws from NumPy": ("integer(s, MOST_WANTED + 1)", "np.random.randint(7)"),
    "step draws from random": ("integer(s, MOST_WANTED + 1)", 'random.randint(0, 6)'),
    "step writes nan by float": ("cost = STORAGE", 'x = float("nan")\n    cost = STORAGE'),
    "step reads beyond the action": ("int(action[0])", "int(action[3])"),
    "step writes a constant": ("    ordered = int", "    CAPACITY = 3\n    ordered = int"),
    "step changes Data": ("    ordered = int", "    d.none[0] = 1.0\n    ordered = int"),
    "step changes Data's end": ("    ordered = int", "    d.none[7] = 1.0\n    ordered = int"),
    "step with try": ("    ordered", "    try:\n        s\n    finally:\n        s\n    ordered"),
    "step with a lambda": ("    ordered = int", "    f = lambda x: x\n    ordered = int"),
    "observe writes nothing": ("    out[0] = s.stock / CAPACITY", "    pass"),
    "observe writes beyond": ("out[0] = s.stock", "out[1] = s.stock"),
    "observe writes far beyond": ("out[0] = s.stock", "out[9000000] = s.stock"),
    "observe writes before": ("out[0] = s.stock", "out[-2] = s.stock"),
    "observe writes nan": ("s.stock / CAPACITY", "np.nan"),
    "observe divides by zero": ("s.stock / CAPACITY", "s.stock / (s.stock - s.stock)"),
    "observe changes the state": ("    out[0] =", "    s.stock += 1\n    out[0] ="),
    "observe returns a value": ("    out[0] = s.stock / CAPACITY", "    return s.stock / CAPACITY"),
    "a mask that allows nothing": ("s.stock + units <= CAPACITY", "False"),
    "a mask beyond its end": ("out[units] =", "out[units + 1] ="),
    "a mask of three arguments": ("def mask(s, p, d, out)", "def mask(s, p, d)"),
    "DEFAULT_HYPERPARAMS of nobody": (
        "STATE = ",
        'DEFAULT_HYPERPARAMS = {"ppo": {"agent": {"no_such": 1}}}\nSTATE = ',
    ),
    "DEFAULT_HYPERPARAMS of wrong values": (
        "STATE = ",
        'DEFAULT_HYPERPARAMS = {"ppo": {"agent": {"n_epochs": "x"}}}\nSTATE = ',
    ),
    "DEFAULT_HYPERPARAMS that are a list": ("STATE = ", "DEFAULT_HYPERPARAMS = [1]\nSTATE = "),
    "a Config that is no config": ("class Config(config.Config)", "class Config(dict)"),
    "a Config without default": ("delivery: float = 2.0", "delivery: float"),
    "async step": ("def step(", "async def step("),
    "a generator": ("cost, False, False", "cost, False, False\n    yield 3"),
}  # fmt: skip


def kernels() -> Iterator[Case]:
    for name, (old, new) in CHANGES.items():
        assert SHOP.count(old) >= 1, name
        yield Case(f"kernel: {name}", TRAIN, writes("shop.py", SHOP.replace(old, new, 1)))
    for name, content in {"empty": "", "binary": b"\x00\xff\xfe", "prose": "a shop\n"}.items():
        yield Case(f"kernel file: {name}", TRAIN, writes("shop.py", content))
