"""Kernels are found by name or path, and a file that is none says what it lacks."""

import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

from slipstream.core.errors import ConfigError, KernelError
from slipstream.kernels import classic as envs
from slipstream.kernels.env_checker import check_environment
from slipstream.kernels.kernel import LOADING, REQUIRED, params_dtype, params_table
from slipstream.kernels.kernel_registry import kernel_modules, list_kernels, load_kernel
from slipstream.kernels.spec import EnvSpec


def test_built_in_kernels_load():
    names = list_kernels()
    assert {"cartpole", "pendulum", "probes"} <= set(names)
    assert not [name for name in names if name.startswith("_")]
    for name in names:
        assert load_kernel(name).name == name


def test_a_file_of_envs_is_built_in(write_kernel, tmp_path, monkeypatch):
    write_kernel("slider.py")
    write_kernel("_shared.py")
    known_kernels = list_kernels()
    monkeypatch.setattr(envs, "__path__", [*envs.__path__, str(tmp_path)])
    kernel_modules.cache_clear()
    try:
        assert set(list_kernels()) - {"slider"} == set(known_kernels)
        kernel = load_kernel("slider")
        assert kernel.name == "slider" and kernel.built_in
        assert kernel.module.__name__ == "slipstream.kernels.classic.slider"
    finally:
        kernel_modules.cache_clear()
        sys.modules.pop("slipstream.kernels.classic.slider", None)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cartpol", ("`cartpol`", "did you mean `cartpole`?", "gym:ID")),
        ("zzzz", ("known: ", "cartpole", "my_env.py")),
        ("absent/thing.py", ("no kernel file absent/thing.py",)),
    ],
)
def test_unknown(name, words):
    with pytest.raises(ConfigError) as error:
        load_kernel(name)
    assert all(word in str(error.value) for word in words)


def test_file_of_ones_own(write_kernel):
    path = write_kernel("my_env.py")
    kernel = load_kernel(str(path))
    assert kernel.name == "my_env" and kernel.mask is None
    loaded = kernel.load(kernel.configure({"width": 2.0}))
    assert loaded.params["train"] == (kernel.Params(2.0),)
    with pytest.raises(ConfigError, match=r"`env.widht`.*`width`"):
        kernel.configure({"widht": 2.0})


def test_a_changed_file_is_another_kernel(write_kernel):
    path = write_kernel()
    first = load_kernel(str(path))
    assert load_kernel(str(path)).module is first.module
    second = load_kernel(str(write_kernel(reset="def reset(s, p, d):\n    s.x = 2.0")))
    assert second.module is not first.module
    assert second.module.__name__ in sys.modules


@pytest.mark.parametrize("part", REQUIRED)
def test_missing_part(write_kernel, part):
    path = write_kernel(**{part: ""})
    with pytest.raises(KernelError, match=f"lacks {part}.*custom-environment.md"):
        load_kernel(str(path))


@pytest.mark.parametrize("part", LOADING)
def test_parts_that_load_data_are_all_defined_or_none(write_kernel, part):
    replaced = {"load": "def load(config):\n    return None"} | {part: ""}
    with pytest.raises(KernelError, match=f"lacks {part}.*all of Params, Data, load, or none"):
        load_kernel(str(write_kernel(**replaced)))


def test_a_kernel_without_data_needs_no_params_data_and_load(write_kernel):
    """Params are the fields of Config; records cross process boundaries."""
    settings = "class Config(config.Config):\n    width: float = 1.5\n    count: int = 3"
    kernel = load_kernel(str(write_kernel(Config=settings, Params="", Data="", load="")))
    loaded = kernel.load(kernel.configure({"width": 2.0}))
    (record,) = loaded.params["train"]
    assert record._asdict() == {"width": 2.0, "count": 3} and isinstance(record, kernel.Params)
    assert pickle.loads(pickle.dumps(record)) == record
    check_environment(kernel, {"count": 4})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def picture(s, p, d):\n    return None", "`picture` is called `render`"),
        ("def conclude(s, p, d):\n    s.x = 0.0", "`conclude` is called `finalize_episode`"),
        ("SETTINGS = {'ppo': {}}", "`SETTINGS` is called `DEFAULT_HYPERPARAMS`"),
    ],
)
def test_parts_under_former_names_are_refused(write_kernel, text, words):
    with pytest.raises(KernelError, match=words):
        load_kernel(str(write_kernel(top=text)))


def test_own_functions_may_have_former_names(write_kernel):
    text = "def vary(x):\n    return x\n\n\nSETTINGS = 7"
    assert load_kernel(str(write_kernel(top=text))).with_params is None


def test_a_kernel_without_settings_needs_no_config(write_kernel):
    parts = dict.fromkeys(("Config", "Params", "Data", "load"), "")
    with pytest.raises(KernelError, match="Params has no field `width`; it has none"):
        load_kernel(str(write_kernel(**parts)))
    parts["reset"] = "def reset(s, p, d):\n    s.x = 1.0"
    kernel = load_kernel(str(write_kernel(**parts)))
    check_environment(kernel, {})
    with pytest.raises(ConfigError, match=r"`env.width` is not a known key"):
        kernel.configure({"width": 2.0})


def test_settings_that_are_no_numbers_need_a_load(write_kernel):
    settings = "class Config(config.Config):\n    names: list[str] = []"
    path = write_kernel(Config=settings, Params="", Data="", load="")
    with pytest.raises(KernelError, match=r"Config.names.*define Params, Data and load"):
        load_kernel(str(path))


@pytest.mark.parametrize(
    ("top", "words"),
    [
        ("def broken(:\n    pass", ("SyntaxError", ":12")),
        ("import no_such_module_anywhere", ("ModuleNotFoundError", ":13")),
        ("LIMIT = 1 / 0", ("ZeroDivisionError", ":13")),
    ],
)
def test_file_that_cannot_be_imported(write_kernel, top, words):
    path = write_kernel(top=top)
    with pytest.raises(KernelError) as error:
        load_kernel(str(path))
    assert str(path) in str(error.value)
    assert words[0] in str(error.value)
    with pytest.raises(KernelError):  # nothing half-imported is left behind
        load_kernel(str(path))


def test_params_become_a_table(write_kernel):
    text = "class Params(NamedTuple):\n    width: float\n    count: int\n    on: bool"
    kernel = load_kernel(str(write_kernel(Params=text)))
    dtype = params_dtype(kernel.Params)
    assert [dtype[name] for name in dtype.names] == [np.float64, np.int64, np.bool_]
    table = params_table(kernel, (kernel.Params(1.5, 3, True), kernel.Params(2.5, -1, False)))
    assert table["width"].tolist() == [1.5, 2.5]
    assert table["count"].tolist() == [3, -1] and table["on"].tolist() == [True, False]


def test_params_hold_scalars_only(write_kernel):
    path = write_kernel(Params="class Params(NamedTuple):\n    width: float\n    table: tuple")
    with pytest.raises(KernelError, match=r"Params.table.*scalars.*Data"):
        load_kernel(str(path))


def test_what_a_kernel_may_leave_out_is_none(write_kernel):
    kernel = load_kernel(str(write_kernel()))
    parts = (kernel.mask, kernel.prefetch, kernel.finalize_episode)
    parts += (kernel.load_folds, kernel.with_params, kernel.timeline)
    assert parts == (None,) * 6
    path = write_kernel(top="def with_params(loaded, config):\n    return None")
    assert load_kernel(str(path)).with_params is not None


def test_a_records_size_may_follow_from_the_data(write_kernel):
    kernel = load_kernel(str(write_kernel()))
    loaded = kernel.load(kernel.Config())
    assert kernel.specialize(loaded) is kernel
    wide = np.dtype([("key", "u8"), ("counter", "u8"), ("x", "f8", (3,))], align=True)
    assert wide == kernel.specialize(replace(loaded, state=wide)).STATE


@pytest.mark.parametrize(
    "action",
    [
        spaces.Discrete(100_001),
        spaces.MultiDiscrete([2] * 50_001),
        spaces.Box(-1.0, 1.0, (100_001,), np.float32),
    ],
)
def test_an_action_space_has_a_bounded_size(action):
    with pytest.raises(
        KernelError, match=r"has 100,00\d actions or numbers, the maximum is 100,000"
    ):
        EnvSpec(spaces.Box(-1.0, 1.0, (1,), np.float32), action)
