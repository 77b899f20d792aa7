"""The shared block: every array has its own place, and any space comes back as it went in."""

import os
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.errors import ResourceError
from slipstream.gym.env_factory import flatten_spaces
from slipstream.gym.process import shared_memory
from slipstream.gym.process.shared_memory import Layout, SharedBlock
from slipstream.gym.shared_layout import agent_layout
from slipstream.kernels.space_codec import (
    SpaceMismatchError,
    iter_leaves,
    make_observation_codec,
    store_leaf,
)
from slipstream.kernels.spec import EnvSpec

shapes = st.lists(st.integers(1, 4), min_size=0, max_size=3).map(tuple)
floats = st.sampled_from([np.float16, np.float32, np.float64, np.int8, np.int64, np.uint8])
leaf_spaces = st.one_of(
    st.builds(lambda s, d: spaces.Box(0, 9, s, d), shapes, floats),
    st.builds(lambda n, s: spaces.Discrete(n, start=s), st.integers(1, 6), st.integers(-3, 3)),
    st.lists(st.integers(1, 5), min_size=1, max_size=3).map(spaces.MultiDiscrete),
    st.integers(1, 4).map(spaces.MultiBinary),
)
trees = st.recursive(
    leaf_spaces,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda s: spaces.Tuple(tuple(s))),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(spaces.Dict),
    ),
    max_leaves=5,
)


def spec_of(space):
    observation, action = flatten_spaces("X", space, spaces.Discrete(3))
    return EnvSpec(observation, action, native_observation_space=space)


@given(space=trees, seed=st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_rows_made_from_leaves_are_the_rows_that_serial_writes(space, seed):
    space.seed(seed)
    spec = spec_of(space)
    form = make_observation_codec(spec)
    layout = agent_layout(spec, form.leaves, 3)
    arrays = layout.views(bytearray(layout.size))
    rows = np.zeros((3, *spec.observation_shape), spec.observation_dtype)
    for e in range(3):
        seen = space.sample()
        rows[e] = form.encode(seen)[0]
        for i, leaf in enumerate(form.leaves):
            store_leaf(leaf, seen, arrays[f"obs.{i}"][e : e + 1].reshape(leaf.shape))
    parts = [arrays[f"obs.{i}"] for i in range(len(form.leaves))]
    assert np.array_equal(form.concat_leaves(parts, (3,)), rows)


@given(space=trees, copies=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_no_two_arrays_share_a_byte(space, copies):
    spec = spec_of(space)
    form = make_observation_codec(spec)
    layout = agent_layout(spec, form.leaves, copies, log=(7, np.uint8))
    memory = bytearray(layout.size)
    for number, (name, array) in enumerate(layout.views(memory).items()):
        array.view(np.uint8).fill(0) if array.ndim and array.flags.c_contiguous else None
        field = layout.fields[name]
        size = array.size * array.itemsize
        assert field.offset % 64 == 0 and field.offset + size <= layout.size
        place = memory[field.offset : field.offset + size]
        assert not any(place), f"{name} lies where another array lies"
        memory[field.offset : field.offset + size] = bytes([number % 250 + 1]) * size
    assert layout.fields["log"].offset == layout.reserved_size


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Box(0, 100, (2,), np.int8), np.array([300, 1])),
        (spaces.Box(0, 9, (2,), np.int64), np.array([0.5, 1.0])),
        (spaces.Box(0, 9, (2,), np.float16), np.array([0.1, 1.0])),
        (spaces.Box(0, 9, (2,)), np.zeros(3)),
        (spaces.Box(0, 9, (2,)), np.zeros((2, 2))),
        (spaces.Discrete(3, start=5), 4),
        (spaces.Dict({"a": spaces.Discrete(3)}), {"b": 1}),
    ],
)
def test_what_a_leaf_cannot_hold_is_refused(space, value):
    form = make_observation_codec(spec_of(space))
    (leaf,) = iter_leaves(form.description, (), 0)
    with pytest.raises(SpaceMismatchError):
        store_leaf(leaf, value, np.zeros(leaf.shape, leaf.dtype))


def test_a_block_is_shared_by_its_descriptor_and_has_no_name():
    layout = Layout.of({"a": ((3,), np.int64), "log": ((1000, 1000), np.int64)}, lazy=("log",))
    first = SharedBlock(layout)
    second = SharedBlock(layout, os.dup(first.fd))
    first["a"][:] = [1, 2, 3]
    assert second["a"].tolist() == [1, 2, 3]
    assert "deleted" in os.readlink(f"/proc/self/fd/{first.fd}")
    first.close(), second.close()


def mapped():
    return Path("/proc/self/maps").read_text().count("memfd:slipstream")


def test_a_view_holds_the_memory_of_a_closed_block():
    before = mapped()
    shared = SharedBlock(Layout.of({"a": ((1000, 1000), np.float64), "b": ((0,), np.int64)}))
    view = shared["a"][1:]
    view[:] = 2.0
    shared.close(), shared.close()
    assert view.sum() == 2.0 * 999 * 1000 and mapped() == before + 1
    del view
    assert mapped() == before


def test_where_the_system_has_no_memory_files(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    test_a_block_is_shared_by_its_descriptor_and_has_no_name()
    one = shared_memory.PipeEvent()
    assert one.fds[0] != one.fds[1]
    one.set(), one.set(), one.clear()
    with pytest.raises(BlockingIOError):
        os.read(one.fds[0], 1)
    one.close()


def test_too_little_memory_says_how_much_is_needed(monkeypatch):
    with pytest.raises(ResourceError, match=r"needs [\d,.]+ MiB, and [\d,.]+ MiB are free"):
        SharedBlock(Layout.of({"a": ((2**50,), np.uint8)}))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_memory.os, "posix_fallocate", full)
    with pytest.raises(ResourceError, match="No space left"):
        SharedBlock(Layout.of({"a": ((8,), np.uint8)}))
