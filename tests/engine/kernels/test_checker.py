"""Every rule of a kernel's source: found with its file, its line, and what to write instead."""

import pytest

from slipstream.core.errors import KernelError
from slipstream.kernels.kernel_registry import load_kernel

# (statement inside step, part of the remedy)
STATEMENTS = {
    "power": ("s.x = s.x ** 2", "write `x * x`"),
    "power assigned": ("s.x **= 2", "write `x * x`"),
    "math.pow": ("s.x = math.pow(s.x, 2.0)", "math.exp"),
    "math.fsum": ("s.x = math.fsum(action)", "a kernel may use acos"),
    "list": ("rows = [1.0, 2.0]", "fixed array field of STATE"),
    "dict": ("rows = {1: 2.0}", "use STATE fields"),
    "set": ("rows = {1.0, 2.0}", "use STATE fields"),
    "list comprehension": ("rows = [i for i in range(3)]", "`for` loop over `range`"),
    "generator": ("rows = (i for i in range(3))", "`for` loop over `range`"),
    "lambda": ("f = lambda x: x", "at module level"),
    "nested function": ("def f(x):\n        return x", "at module level"),
    "class": ("class C:\n        pass", "STATE fields and module-level functions"),
    "try": ("try:\n        s.x = 1.0\n    finally:\n        s.x = 2.0", "guard the value"),
    "raise": ("raise ValueError", "guard the value with `if`"),
    "assert": ("assert s.x > 0.0", "check settings in `Config`"),
    "with": ("with open(0):\n        s.x = 1.0", "do input and output in `load`"),
    "f-string": ('name = f"{s.x}"', "`EnvSpec(trace=...)`"),
    "text": ('s.x = 1.0 if s.x == "a" else 2.0', "module-level int constant"),
    "import": ("import os", "at the top of the file"),
    "import from": ("from math import sin", "at the top of the file"),
    "global": ("global LIMIT\n    LIMIT = 2.0", "make it a STATE field"),
    "starred": ("s.x = max(*action)", "one by one"),
    "print": ("print(s.x)", "not among the built-ins"),
    "sorted": ("x = sorted(action)", "not among the built-ins"),
    "numpy function": ("s.x = np.sqrt(s.x)", "write `math.sqrt`"),
    "numpy infinity": ("s.x = np.inf", "write `math.inf`"),
    "numpy clip": ("s.x = np.clip(s.x, 0.0, 1.0)", "`min(max(x, low), high)`"),
    "numpy array": ("x = np.zeros(3)", "a fixed array field of STATE"),
    "numpy random": ("s.x = np.random.rand()", "`uniform(s)`"),
    "float of text": ('s.x = float("nan")', "write `math.nan`"),
    "float of infinity": ('s.x = float("-inf")', "write `-math.inf`"),
    "action written": ("action[0] = 1", "copy it into a STATE field"),
    "data written": ("d.table[0] = 2.0", "which is shared"),
    "data added to": ("d.table[0] += 2.0", "which is shared"),
    "params written": ("p.width = 2.0", "which is shared"),
    "endless loop": ("while True:\n        s.x = 1.0", "`for i in range(n)`"),
    "constant hidden": ("LIMIT = 2.0", "a field of STATE"),
    "two values": ("return 1.0, False", "`return reward, terminated, truncated`"),
    "reward alone": ("return 1.0", "`return reward, terminated, truncated`"),
    "module attribute": ("s.x = random.uniform(s)", "from slipstream.core.random import uniform"),
    "global array": ("s.x = TABLE[0]", "put arrays into Data"),
    "global dict": ("s.x = SETTINGS[0]", "put arrays into Data"),
    "float32 data": ("s.x = 2.0 * d.table[0]", "write `float(d.table[0])`"),
    "float32 data compared": ("s.x = 1.0 if d.table[0] > 2.0 else 0.0", "`float(d.table[0])`"),
    "float32 data added": ("s.x += d.table[1]", "write `float(d.table[1])`"),
    "float32 data negated": ("s.x = -d.table[1]", "write `float(d.table[1])`"),
    "signed beside unsigned": ("x = s.counter + 1", "write `np.uint64(1)`"),
    "signed shift": ("x = s.key ^ 3", "write `np.uint64(3)`"),
    "stream begun again": ("s.counter = np.uint64(0)", "a STATE field of your own"),
    "stream renamed": ("s.key ^= np.uint64(3)", "draw with `uniform(s)`"),
    "field of STATE": ("s.total = 1.0", "STATE has no field `total`; it has key, counter, x"),
    "field of Params": ("s.x = p.widht", "Params has no field `widht`; perhaps `width` is meant"),
    "field of Data": ("s.x = float(d.tables[0])", "Data has no field `tables`; perhaps"),
    "action": ("s.x = 2.0 * action[0]", "`float(action[0])`"),
}
TOP = """
from slipstream.core import random

LIMIT = 1.0
TABLE = np.ones(3)
SETTINGS = {0: 1.0}
"""


@pytest.mark.parametrize("name", STATEMENTS)
def test_rule(write_kernel, name):
    statement, remedy = STATEMENTS[name]
    step = (
        f"def step(s, action, p, d):\n    s.x = 0.5\n    {statement}\n    return 1.0, False, False"
    )
    path = write_kernel(top=TOP, step=step)
    lines = path.read_text().splitlines()
    expected = lines.index("    s.x = 0.5") + 2
    if name == "starred" or name == "global":
        expected = None  # any line of the statement
    with pytest.raises(KernelError) as error:
        load_kernel(str(path))
    message = str(error.value)
    assert remedy in message, message
    assert "(in `step`)" in message
    assert f"{path}:{expected or ''}" in message, message
    assert "\n" not in message


def test_helpers_are_read_too(write_kernel):
    top = "def helper(x):\n    return x ** 2.0"
    step = "def step(s, action, p, d):\n    return helper(s.x), False, False"
    path = write_kernel(top=top, step=step)
    line = path.read_text().splitlines().index("    return x ** 2.0") + 1
    with pytest.raises(KernelError, match=f"mine.py:{line} .in `helper`.*x . x"):
        load_kernel(str(path))


def test_decorated_and_foreign_functions(write_kernel):
    top = "import functools"
    step = "@functools.cache\ndef step(s, action, p, d):\n    return 1.0, False, False"
    with pytest.raises(KernelError, match="plain function"):
        load_kernel(str(write_kernel(top=top, step=step)))
    top = "def same(f):\n    return f"
    step = "@same\ndef step(s, action, p, d):\n    return 1.0, False, False"
    with pytest.raises(KernelError, match="remove the decorator"):
        load_kernel(str(write_kernel(top=top, step=step)))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ('[("key", "u8"), ("counter", "u8"), ("x", "f4")]', ("`x` is float32", "float64")),
        ('[("key", "u8"), ("counter", "u8"), ("x", "i4")]', ("`x` is int32", "int64")),
        ('[("key", "u8"), ("counter", "u8"), ("x", "f4", (3,))]', ("`x` is float32",)),
        ('[("key", "u8"), ("x", "f8")]', ('("counter", "u8")',)),
        ('[("key", "i8"), ("counter", "u8"), ("x", "f8")]', ('("key", "u8")',)),
    ],
)
def test_state(write_kernel, fields, words):
    path = write_kernel(STATE=f"STATE = np.dtype({fields}, align=True)")
    with pytest.raises(KernelError) as error:
        load_kernel(str(path))
    assert all(word in str(error.value) for word in (str(path), *words))


def test_state_must_be_aligned(write_kernel):
    text = 'STATE = np.dtype([("key", "u8"), ("counter", "u8"), ("on", "?"), ("x", "f8")])'
    with pytest.raises(KernelError, match="align=True"):
        load_kernel(str(write_kernel(STATE=text)))
    with pytest.raises(KernelError, match="structured NumPy dtype"):
        load_kernel(str(write_kernel(STATE="STATE = {}")))


@pytest.mark.parametrize(
    ("part", "text", "contract"),
    [
        ("reset", "def reset(s, p):\n    s.x = 0.0", "reset(s, p, d)"),
        ("step", "def step(s, action):\n    return 1.0, False, False", "step(s, action, p, d)"),
        ("observe", "def observe(s, out):\n    out[0] = 1.0", "observe(s, p, d, out)"),
        ("top", "def mask(s, out):\n    out[0] = True", "mask(s, p, d, out)"),
    ],
)
def test_arguments(write_kernel, part, text, contract):
    path = write_kernel(**{part: text})
    with pytest.raises(KernelError) as error:
        load_kernel(str(path))
    assert contract in str(error.value) and str(path) in str(error.value)


@pytest.mark.parametrize(
    ("part", "given", "contract"),
    [
        ("observe", "s, player, p, d, out", "observe(s, p, d, player, out)"),
        ("observe", "p, s, d, out", "observe(s, p, d, out)"),
        ("step", "action, s, p, d", "step(s, action, p, d)"),
    ],
)
def test_swapped_parameters_are_named(write_kernel, part, given, contract):
    """Each is handed another's value: what fails then has a message of its own, or none."""
    path = write_kernel(**{part: f"def {part}({given}):\n    pass"})
    with pytest.raises(KernelError) as error:
        load_kernel(str(path))
    assert f"`{part}({given})`" in str(error.value) and contract in str(error.value)


def test_what_a_kernel_may_do(write_kernel):
    """Nothing of the ordinary is refused."""
    top = """
        LIMIT = 3
        LEVELS = (0.5, 1.5)
        WORD = np.uint64(3)


        def half(x: float) -> float:
            return 0.5 * x
        """
    step = '''
        def step(s, action, p, d):
            """Text in a docstring is nobody's business."""
            total = 0.0
            for i in range(LIMIT):
                total += half(float(d.table[i])) * LEVELS[0]
            x = s.key ^ WORD
            while total > 10.0:
                total = math.floor(total - 1.0)
            push = 1.0 if action[0] == 1 else -1.0
            s.x = min(max(total * push, -1.0), 1.0) + uniform(s)
            return abs(s.x), s.x > 2.0 or total < 0.0, not s.x < 3.0
        '''
    assert load_kernel(str(write_kernel(top=top, step=step))).name == "mine"


def test_all_errors_of_a_file_are_listed_at_once(write_kernel):
    path = write_kernel(
        STATE='STATE = np.dtype([("key", "u8"), ("counter", "u8"), ("x", "f4")], align=True)',
        reset="def reset(s, p):\n    s.x = p.width",
        step="def step(s, action, p, d):\n    s.x = s.x ** 2\n    s.x = np.inf\n    return 1.0",
        observe="def observe(s, p, d, out):\n    s.x = 1.0",
    )
    with pytest.raises(KernelError) as error:
        load_kernel(str(path))
    words = str(error.value)
    for problem in (
        *("`x` is float32", "reset(s, p, d)", "write `x * x`", "write `math.inf`"),
        *("`step` returns", "`s.x` is set in `observe`", "writes nothing into its row"),
    ):
        assert problem in words, problem
    assert words.startswith("7 rules are broken: (1) ") and "(7) " in words
