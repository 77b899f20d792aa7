"""`slipstream.portable` acts as `load_policy` does, to the bit, and refuses what that refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from policy_samples import (
    IMAGES,
    MORE,
    POLICIES,
    forged_manifests,
    forged_tensors,
    masks_of,
    policy_of,
    resealed,
    saved,
    shown,
)

from slipstream import portable
from slipstream.core.storage import checkpoint
from slipstream.rl.compiled_loops import compile_loops, f4
from slipstream.rl.nets.layers import tanh_f32
from slipstream.rl.nets.policy_file import pack, read_policy

SOURCE = Path(portable.__file__).parents[1]


def same(one, other):
    assert type(one) is type(other) and np.shape(one) == np.shape(other), (one, other)
    assert np.asarray(one).dtype == np.asarray(other).dtype
    return np.array_equal(one, other)


@pytest.mark.parametrize("name", MORE)
def test_actions_are_those_of_the_compiled_policy_to_the_bit(name, tmp_path):
    policy, spec = policy_of(name), MORE[name][0]
    mine = portable.load(saved(policy, tmp_path / "policy"))
    rows, batch = shown(spec, 70)  # more than a block of the compiled loops
    masks = masks_of(spec, 70)
    theirs = policy.act(batch, masks)
    # torch adds images' sums in another order: outputs agree to 1e-5 of the largest
    close = {"rtol": 1e-4, "atol": 1e-4} if name == "screen" else None
    if name in IMAGES:
        inputs = policy.native.rows(batch)[0]
        outputs = policy.actor(70).head(inputs)[0, :70, : policy.actions.head_width]
        assert np.abs(mine.outputs(inputs) - outputs).max() < 1e-5 * np.abs(outputs).max()
    ours = mine.act(batch, masks)
    assert same(ours, theirs) if close is None else np.allclose(ours, theirs, **close)
    if name != "alone":
        assert len(np.unique(theirs, axis=0)) > 1, "they decide nothing"
    for k in range(len(rows)):
        mask = None if masks is None else masks[k]
        one, alone = mine.act(rows[k], mask), policy.act(rows[k], mask)
        assert same(one, alone) if close is None else np.allclose(one, alone, **close)


def test_distant_observations_stay_apart_without_normalisation(tmp_path):
    policy = policy_of("plain")
    mine = portable.load(saved(policy, tmp_path / "policy"))
    read = read_policy(tmp_path / "policy")
    assert np.isinf(read.scale.limit).all()
    rows = np.array([[50.0, -50.0, 20.0, 20.0, 20.0]], np.float32)
    outputs = [mine.outputs(rows * factor) for factor in (1, 2)]
    assert np.abs(outputs[0] - outputs[1]).max() > 1.0
    for factor, output in zip((1, 2), outputs, strict=True):
        for one in (policy, read):
            assert (one.actor(1).head(rows * factor)[0, :1, : output.shape[1]] == output).all()


@pytest.mark.parametrize("name", [name for name in MORE if name not in IMAGES])
def test_drawn_actions_are_the_same_to_the_bit(name, tmp_path):
    policy, spec = policy_of(name), MORE[name][0]
    mine = portable.load(saved(policy, tmp_path / "policy"))
    rows, batch = shown(spec, 70)
    masks = masks_of(spec, 70)
    for seed in (None, 11):
        for one in (policy, mine) if seed is not None else ():
            one.reseed(seed)
        for _ in range(3):
            assert same(mine.act(batch, masks, False), policy.act(batch, masks, False))
        mask = None if masks is None else masks[0]
        assert same(mine.act(rows[0], mask, False), policy.act(rows[0], mask, False))


def test_an_empty_batch_has_no_actions(tmp_path):
    for name in ("ppo_multi", "ppo_box", "nested"):
        policy, spec = policy_of(name), MORE[name][0]
        mine = portable.load(saved(policy, tmp_path / name))
        empty = spec.observation_space.sample()[None][:0]
        if name == "nested":
            space = spec.native_observation_space
            batch = batch_of(space)
            empty = {"a": batch["a"][:0], "c": batch["c"][:0]}
            empty["b"] = tuple(part[:0] for part in batch["b"])
        assert same(mine.act(empty), policy.act(empty))


def batch_of(space):
    """Two observations of a Dict, the batch axis in every array."""
    one = space.sample()
    twice = {key: np.stack([value] * 2) for key, value in one.items() if key != "b"}
    return {**twice, "b": tuple(np.stack([part] * 2) for part in one["b"])}


def test_a_batch_of_a_dict_has_its_axis_in_every_array(tmp_path):
    policy = policy_of("nested")
    mine = portable.load(saved(policy, tmp_path / "policy"))
    batch = batch_of(MORE["nested"][0].native_observation_space)
    assert same(mine.act(batch), policy.act(batch)) and len(mine.act(batch)) == 2


@pytest.mark.parametrize("ordered", [True, False])
def test_sums_do_not_depend_on_the_library(ordered, monkeypatch):
    draw = np.random.default_rng(0)
    weight, bias = draw.normal(size=(50, 7)).astype("f4"), draw.normal(size=7).astype("f4")
    x = draw.normal(size=(6, 50)).astype("f4")
    for first in (True, False):
        layer = portable.Layer(weight, bias, first)
        layer._is_ordered &= ordered
        alone = np.vstack([layer(row[None]) for row in x])
        assert np.array_equal(alone, layer(x))
        order = range(51) if first else (50, *range(50))
        whole, ones = np.vstack((weight, bias)), np.hstack((x, np.ones((6, 1), "f4")))
        total = [[Fraction(0)] * 7 for _ in x]
        for i in range(6):
            for j in range(7):
                for k in order:
                    exact = Fraction(float(ones[i, k])) * Fraction(float(whole[k, j]))
                    total[i][j] = rounded(total[i][j] + exact)
        assert np.array_equal(alone, np.array([[float(one) for one in row] for row in total], "f4"))


def rounded(exact):
    """The float32 number nearest to a fraction, ties to even."""
    guess = np.float32(float(exact))
    near = [
        np.nextafter(guess, np.float32(-np.inf)),
        guess,
        np.nextafter(guess, np.float32(np.inf)),
    ]
    key = lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.int32)) & 1)  # noqa: E731
    return Fraction(float(min(near, key=key)))


def test_what_lies_halfway_is_rounded_once():
    """Sums whose float64 is halfway between two float32 numbers, which the exact sum is not."""
    x = 2.0**-12
    a = np.array([1 + x, 1 - 2.0**-18, -(1 + x), 1.5])  # (1 + x) (1 - x + x^2) = 1 + x^3
    b = np.array(
        [(1 - x + x * x) * 2.0**-24, (1 + 2.0**-18) * 2.0**-24, (1 - x + x * x) * 2.0**-24, 1]
    )
    c = np.array([1.0, 1 + 2.0**-23, -1.0, 2.0**-24])
    exact = [Fraction(x) * Fraction(y) + Fraction(z) for x, y, z in zip(a, b, c, strict=True)]
    assert portable._fma(a, b, c).tolist() == [float(rounded(one)) for one in exact]
    assert not np.array_equal(portable._fma(a, b, c), (a * b + c).astype("f4").astype("f8"))


def tangents(x, y):
    for i in range(len(x)):
        y[i] = tanh_f32(x[i])


def test_the_tangent_is_the_compiled_one():
    x = np.concatenate([np.linspace(-12, 12, 200_001), [0.0, 1e-30, -1e-38, 3e38]]).astype("f4")
    theirs = np.zeros_like(x)
    compile_loops("tangents", {tangents: (f4(1), f4(1))})["tangents"](x, theirs)
    with np.errstate(over="ignore"):
        assert np.array_equal(portable._tanh(x[None])[0], theirs)


# What is refused.


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.zeros(4), r"\(4,\)"),
        (np.zeros((2, 2, 5)), r"\(2, 2, 5\)"),
        (np.array([0, 1, np.nan, 3, 4]), "NaN"),
        (np.array([0, 1, np.inf, 3, 4]), "NaN or infinity"),
        ("words", "instead of"),
        (None, "instead of"),
        ([[1, 2], [3]], "."),
        ({"a": 1}, "instead of"),
    ],
)
def test_odd_observations_are_refused_in_words(given, said, tmp_path):
    mine = portable.load(saved(policy_of("ppo_box"), tmp_path / "policy"))
    with pytest.raises(portable.PolicyError, match=said) as raised:
        mine.act(given)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 500


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (None, "no mask="),
        (np.ones(3, bool), "a mask of bool"),
        (np.ones((1, 4), bool), "a mask of bool"),
        (np.zeros(4, bool), "allows no action"),
        (np.ones(4), "a mask of float64"),
    ],
)
def test_odd_masks_are_refused_in_words(mask, said, tmp_path):
    mine = portable.load(saved(policy_of("ppo"), tmp_path / "policy"))
    with pytest.raises(portable.PolicyError, match=said):
        mine.act(np.zeros(5), mask)


def test_a_box_takes_no_mask(tmp_path):
    mine = portable.load(saved(policy_of("ppo_box"), tmp_path / "policy"))
    with pytest.raises(portable.PolicyError, match="a mask of"):
        mine.act(np.zeros(5), np.ones(3, bool))


def test_odd_parts_of_a_dict_are_refused(tmp_path):
    mine = portable.load(saved(policy_of("nested"), tmp_path / "policy"))
    one = MORE["nested"][0].native_observation_space.sample()
    wrong = [{"a": one["a"]}, {**one, "b": (7, one["b"][1])}, {**one, "c": np.array([0.0, 1.0])}]
    for given in wrong:
        with pytest.raises(portable.PolicyError):
            mine.act(given)


def damaged(folder):
    """What was done to a copy of a policy's folder."""
    whole = {name: (folder / name).read_bytes() for name in os.listdir(folder)}

    def restored():
        for name, content in whole.items():
            (folder / name).write_bytes(content)

    for name, content in whole.items():
        for what, other in (
            ("cut", content[: len(content) // 2]),
            ("empty", b""),
            ("a byte", content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]),
            ("no text", b"\xff\xfe" + content),
        ):
            restored()
            (folder / name).write_bytes(other)
            yield f"{name}: {what}"
        restored()
        (folder / name).unlink()
        yield f"{name}: gone"
        (folder / name).mkdir()
        yield f"{name}: a folder"
        (folder / name).rmdir()
        os.mkfifo(folder / name)
        yield f"{name}: a pipe"
        (folder / name).unlink()
        restored()
    with (folder / "state.safetensors").open("r+b") as file:
        file.truncate(1 << 40)  # sparse
    yield "a terabyte"
    restored()
    deep = b'{"policy": ' * 20_000 + b"1" + b"}" * 20_000
    (folder / "manifest.json").write_bytes(deep)
    yield "nested without end"


def test_damaged_files_are_refused_in_words(tmp_path):
    folder = saved(policy_of("ppo_box"), tmp_path / "policy")
    seen = 0
    for what in damaged(folder):
        with pytest.raises(portable.PolicyError) as raised:
            portable.load(folder)
        seen += 1
        assert "\n" not in str(raised.value) and len(str(raised.value)) < 700, what
    assert seen == 16


@pytest.mark.parametrize("place", ["nowhere", "."])
def test_what_is_no_policy_is_refused(place, tmp_path):
    with pytest.raises(portable.PolicyError, match="it is not a policy, a run"):
        portable.load(tmp_path / place)


def test_another_format_is_named(tmp_path):
    tensors, manifest = pack(policy_of("ppo_box"))
    folder = checkpoint.save(tmp_path / "policy", tensors, {"policy": {**manifest, "format": 3}})
    with pytest.raises(portable.PolicyError, match="it has format 3, but this file reads 2"):
        portable.load(folder)


def refused_or_the_same(name, cases):
    """Of forged policies those that act otherwise, or fail otherwise than in words."""
    tensors, manifest = packed(name)
    _, batch = shown(MORE[name][0], 3)
    masks = masks_of(MORE[name][0], 3)
    wanted, found, count = portable.PortablePolicy(manifest, tensors).act(batch, masks), [], 0
    for what, given, description in cases(tensors, manifest):
        count += 1
        try:
            policy = portable.PortablePolicy(resealed(given, description), given)
        except Exception as error:  # `load` tells all of them in words
            if isinstance(error, (MemoryError, RecursionError, SystemError)):
                found.append(f"{what}: {error!r}")
            continue
        try:
            other = not same(policy.act(batch, masks), wanted)
            found += [f"{what}: acts otherwise"] if other else []
        except portable.PolicyError:
            continue
        except Exception as error:
            found.append(f"{what}: {error!r}")
    return found, count


def packed(name):
    if name in IMAGES:
        pytest.importorskip("torch")
    tensors, manifest = pack(policy_of(name))
    return tensors, json.loads(json.dumps(manifest))


@pytest.mark.parametrize("name", POLICIES)
def test_forged_descriptions_are_refused_or_change_nothing(name):
    found, count = refused_or_the_same(
        name, lambda tensors, manifest: ((w, tensors, m) for w, m in forged_manifests(manifest))
    )
    assert not found and count > 200, "\n".join(found[:40])


@pytest.mark.parametrize("name", POLICIES)
def test_forged_tensors_are_refused_or_change_nothing(name):
    found, count = refused_or_the_same(
        name, lambda tensors, manifest: ((w, t, manifest) for w, t in forged_tensors(tensors))
    )
    assert not found and count > 50, "\n".join(found[:40])


# Where it runs.

ALONE = """
import sys
sys.path[:0] = sys.argv[1:3]
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{name} is blocked")
BLOCKED = set(sys.argv[3].split(","))
sys.meta_path.insert(0, Blocked())
import numpy as np
from slipstream import portable
policy = portable.load(sys.argv[4])
print(policy.act(np.zeros(5, np.float32)).tolist())
ours = {name.removeprefix("slipstream") for name in sys.modules if name.startswith("slipstream")}
assert ours <= {"", ".core", ".core.version", ".portable"}, ours
"""
BLOCKED = "numba,llvmlite,polars,scipy,torch,gymnasium,pydantic,optuna,yaml,psutil,rich,typer,talib"


def test_it_needs_numpy_and_safetensors_alone(tmp_path):
    """In an interpreter that has these two, the standard library and slipstream's own files."""
    policy = policy_of("ppo_box")
    folder, libraries = saved(policy, tmp_path / "policy"), tmp_path / "libraries"
    libraries.mkdir()
    site = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs", "safetensors"):
        if (site / name).is_dir():
            (libraries / name).symlink_to(site / name)
    given = [str(libraries), str(SOURCE), BLOCKED, str(folder)]
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ALONE, *given], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == policy.act(np.zeros(5, np.float32)).tolist()


def test_it_may_be_copied_to_a_machine_without_slipstream(tmp_path):
    folder = saved(policy_of("ppo_box"), tmp_path / "policy")
    (tmp_path / "acts.py").write_text(Path(portable.__file__).read_text())
    code = "import sys, numpy as np, acts; print(acts.load(sys.argv[1]).act(np.zeros(5)).tolist());"
    code += "assert not [name for name in sys.modules if name.startswith('slipstream')]"
    ran = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr


READS = """
import sys
import numpy as np
import slipstream
alone = []
for folder in sys.argv[1:]:
    policy = slipstream.load_policy(folder)
    drawn = [policy.act(np.zeros(5, np.float32), deterministic=False) for _ in range(3)]
    alone.append((policy, drawn, policy.act(np.ones(5, np.float32))))
assert not {"numba", "llvmlite", "torch", "scipy"} & set(sys.modules)
for policy, drawn, one in alone:
    many = policy.act(np.ones((2, 5), np.float32))
    assert "numba" in sys.modules
    assert np.array_equal(one, many[1]) and np.array_equal(one, policy.act(np.ones(5, np.float32)))
    policy.reseed(3)
    again = [policy.act(np.zeros(5, np.float32), deterministic=False) for _ in range(3)]
    assert np.array_equal(drawn, again)
"""


def test_load_policy_needs_no_compiler_for_one_observation(tmp_path):
    names = ["ppo_box", "ppo_multi", "sac", "td3", "dueling"]
    folders = [str(saved(policy_of(name), tmp_path / name)) for name in names]
    ran = subprocess.run([sys.executable, "-c", READS, *folders], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_a_run_gives_its_best_members_policy(tmp_path):
    folders = {}
    for m, score in enumerate((1.0, 3.0, 2.0)):
        tensors, manifest = pack(policy_of("ppo_box"))
        manifest = resealed(tensors, {**manifest, "seed": 10 + m})
        folder = tmp_path / "best" / f"member-{m:03d}"
        facts = {"policy": manifest, "score": score, "steps": 1}
        folders[m] = checkpoint.save(folder, tensors, facts)
        checkpoint.save(folder.with_name(f"{folder.name}.previous"), tensors, {**facts, "score": 9})
    assert portable.load(tmp_path).description["seed"] == 11
    assert portable.load(tmp_path, member=2).description["seed"] == 12
    assert portable.load(folders[0]).description["seed"] == 10
    with pytest.raises(portable.PolicyError, match="a run with a best policy"):
        portable.load(tmp_path, member=7)
