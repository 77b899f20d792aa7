"""Infos of numbers lie in the block: the same bits as Gymnasium's, and nobody is asked for them."""

import functools
import os
import signal
import struct
import sys
import time

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.child_process import FaultPolicy
from slipstream.gym.foreign_env import ForeignEnv
from slipstream.gym.gymnasium_semantics import DISABLED, NEXT_STEP, SAME_STEP, NativeEnv
from slipstream.gym.infos import (
    FIRST_SCHEMA,
    MAX_INFO_BYTES,
    ON_REQUEST,
    InfoSchema,
    SchemaTable,
    batch_infos,
    get_signature,
)
from slipstream.kernels.vector_env import member_indices

pytestmark = pytest.mark.usefixtures("one_server")

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test

MODES = {
    NEXT_STEP: AutoresetMode.NEXT_STEP,
    SAME_STEP: AutoresetMode.SAME_STEP,
    DISABLED: AutoresetMode.DISABLED,
}


def said(draw, time):
    """One of many infos: keys come late or not at all, change types, nest, are no numbers."""
    kinds = [
        {},
        {"x": draw, "time": time, "won": draw < 0.5, "half": np.float32(draw), "n": np.int16(time)},
        {"x": draw, "time": time, "won": draw > 0.5, "half": np.float32(draw), "n": np.int16(3)},
        {"time": draw, "x": time, "flag": np.bool_(draw < 0.7)},
        {"row": np.full((2, 3), draw), "in": {"deep": {"r": draw, "l": time}, "e": {}}},
        {"row": np.full((2, 3), np.int8(time)), "wave": np.array(draw + 1j), "e": {"e": time}},
        {"word": "so", "x": draw},
        {"large": 2**62 + time, "x": draw},
        {"late": np.uint64(time)} if time > 5 else {"x": np.float16(draw)},
    ]
    return kinds[int(draw * 1000) % len(kinds)]


class Says(gymnasium.Env):
    """Says something else at every step."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, only=None):
        self.only = only  # one form at every step

    def _said(self):
        draw = self.np_random.random()
        return said(draw, self.time) if self.only is None else self.only | {"x": draw}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.np_random.random(2, np.float32), self._said()

    def step(self, action):
        self.time += 1
        over = self.np_random.random() < 0.1
        return self.np_random.random(2, np.float32), 1.0, over, self.time >= 50, self._said()


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(other, dict):
        assert list(one) == list(other)
        for key in other:
            assert_same(one[key], other[key])
    elif isinstance(other, np.ndarray):
        assert one.dtype == other.dtype and one.shape == other.shape
        if other.dtype == object:
            for a, b in zip(one, other, strict=True):
                assert_same(a, b)
        else:
            assert one.tobytes() == other.tobytes()
    else:
        assert one == other


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("at_end", MODES)
def test_infos_are_those_of_gymnasium_to_the_bit(at_end, backend):
    theirs = SyncVectorEnv([Says] * 6, autoreset_mode=MODES[at_end])
    with NativeEnv([Says] * 6, backend=backend, at_end=at_end, workers=2) as ours:
        wanted = theirs.reset(seed=list(range(6)))[1]
        ours.reset(list(range(6)))
        assert_same(ours.infos(), wanted)
        for _ in range(120):
            *_, terminated, truncated, wanted = theirs.step(np.zeros(6, np.int64))
            ours.step(np.zeros(6, np.int64))
            assert_same(ours.infos(), wanted)
            async_steps = batch_infos(list(enumerate(ours.info_list())), 6)
            plain = {k: v for k, v in wanted.items() if not k.lstrip("_").startswith("final_")}
            assert async_steps.keys() == plain.keys()
            if at_end == DISABLED and (ended := terminated | truncated).any():
                wanted = theirs.reset(options={"reset_mask": ended})[1]
                ours.reset(selected=ended)
                assert_same(ours.infos(), wanted)


NUMBERS = {"x": 0.0, "y": 1, "z": True, "u": np.float32(2), "v": np.zeros(3)}


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_nobody_is_asked_for_numbers_once_their_form_is_known(backend):
    make = functools.partial(Says, NUMBERS)
    with NativeEnv([make] * 4, backend=backend, at_end=SAME_STEP, workers=2) as env:
        env.reset([1, 2, 3, 4])
        env.infos()
        ended = 0
        for t in range(40):
            env.step(np.zeros(4, np.int64))
            if t == 1:  # the form was asked for, then handed over with the next question
                env._infos._ask = None
            assert env.infos()["v"].shape == (4, 3)
            ended += int(env.arrays["has_final"].sum())
            for e in np.flatnonzero(env.arrays["has_final"]):
                assert env.infos()["final_info"]["x"][e] == env.final_info_list()[e]["x"]
        assert ended > 3
        mine = env.info_list()
        mine[0]["v"][:] = 9.0  # the caller's
        assert env.info_list()[0]["v"].tolist() == [0.0] * 3


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_copies_under_way_have_said_nothing(backend):
    make = functools.partial(Says, NUMBERS)
    with NativeEnv([make] * 4, backend=backend, workers=2) as env:
        env.reset([1, 2, 3, 4])
        for _ in range(3):
            env.step(np.zeros(4, np.int64))
            assert env.infos()["_x"].all()
        env.send(np.zeros(4, np.int64))
        ready = env.recv(3)
        infos, async_steps = env.infos(), env.info_list()
        assert np.flatnonzero(infos["_x"]).tolist() == sorted(ready.tolist())
        assert [e for e in range(4) if async_steps[e]] == sorted(ready.tolist())
        env.recv(1)
        assert env.infos()["_x"].all()


def test_new_copies_and_those_of_a_replaced_worker_learn_the_forms_again():
    make = functools.partial(Says, NUMBERS)
    policy = FaultPolicy("restart")
    with NativeEnv([make] * 2, backend="process", workers=2, policy=policy) as env:
        env.reset([1, 2])
        for _ in range(3):
            env.step(np.zeros(2, np.int64))
            env.infos()
        env.resize(5)
        survivors = np.arange(5)[env.driver.handles[1].rows]
        os.kill(env.driver.handles[0].pid, signal.SIGKILL)
        until = time.monotonic() + 120.0
        while time.monotonic() < until:
            env.step(np.zeros(5, np.int64))
            infos = env.infos()
            said = infos["_x"]
            assert said[survivors].all()
            assert not (said & env.driver.dirty).any()  # a worker that is being started
            assert (infos["x"][said] > 0).all() and (infos["y"][said] == 1).all()
            if said.all() and (env.arrays["info_code"] == FIRST_SCHEMA).all():
                break
        assert (env.arrays["info_code"] == FIRST_SCHEMA).all() and infos["v"].shape == (5, 3)


class DiesOnce(Says):
    """Its process ends in the first reset with options."""

    def __init__(self, file):
        super().__init__(NUMBERS)
        self.file = file

    def reset(self, *, seed=None, options=None):
        if options and not self.file.exists():
            self.file.touch()
            os._exit(3)
        return super().reset(seed=seed)


def test_a_worker_that_is_lost_in_a_reset_is_replaced_and_reset(tmp_path):
    makers = [functools.partial(Says, NUMBERS), functools.partial(DiesOnce, tmp_path / "died")]
    policy = FaultPolicy("restart")
    with (
        NativeEnv(makers, backend="process", workers=2, policy=policy) as env,
        NativeEnv(makers, backend="serial") as other,
    ):
        env.reset([1, 2], options={"die": True})
        other.reset([1, 2])
        assert_same(env.observation(), other.observation())
        assert_same(env.infos(), other.infos())
        assert [fault.kind for fault in env.drain_faults()] == ["lost"]


def test_training_copies_write_numbers_when_they_are_asked():
    rows = member_indices([3], 4)
    with ForeignEnv(functools.partial(Says, NUMBERS), *rows, workers=2) as env:
        env.reset(seed=1)
        for t in range(4):
            env.step([0] * 4)
            infos = env.infos()
            assert infos["_x"].all() and infos["v"].shape == (4, 3)
            assert (env.arrays["info_code"] == (FIRST_SCHEMA if t else ON_REQUEST)).all()
        env.step([0] * 4)
        assert not env.arrays["info_code"].any()


def test_what_has_no_place_is_handed_over():
    table = SchemaTable()
    memory = bytearray(2 * MAX_INFO_BYTES)
    for info in (
        {"wide": np.zeros(MAX_INFO_BYTES // 8 + 1)}, {"word": "a"}, {1: 2.0}, {"e": {}},
        {"final_obs": 1.0}, {"none": None}, {"o": np.array([None])}, {"list": [1]},
    ):  # fmt: skip
        table.add_schema(info)
        assert not table.schemas and table.write(info, memoryview(memory), 0) == ON_REQUEST
    table.add_schema({"n": 1})
    assert table.write({"n": 2**63 - 1}, memoryview(memory), 1) == FIRST_SCHEMA
    assert table.read(np.frombuffer(memory, np.uint8).reshape(2, -1), 1, FIRST_SCHEMA) == {
        "n": 2**63 - 1
    }
    assert table.write({"n": 2**63}, memoryview(memory), 1) == ON_REQUEST
    for i in range(300):
        table.add_schema({f"key {i}": 1.0})
    assert len(table.schemas) < 250  # an entry of `told` is a byte


def test_what_cannot_become_the_first_copys_type_is_an_error_as_in_gymnasium():
    place = np.zeros((2, MAX_INFO_BYTES), np.uint8)
    info = {"x": float("nan")}
    form = InfoSchema(get_signature(info))
    form.pack(info, place.reshape(-1).data, MAX_INFO_BYTES)
    with pytest.raises(ValueError, match="NaN"):
        form.add({"x": np.zeros(2, np.int64)}, np.array([1]), place)


numbers = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.booleans(),
    st.builds(np.bool_, st.booleans()),
    st.builds(np.float32, st.floats(width=32, allow_nan=False)),
    st.builds(np.uint8, st.integers(0, 255)),
    st.builds(
        lambda shape, dtype, fill: np.full(shape, fill).astype(dtype),
        st.lists(st.integers(0, 3), max_size=2).map(tuple),
        st.sampled_from(["<f8", ">i4", "?", "<c8", "<f2"]),
        st.integers(-5, 5),
    ),
)
keys = st.text(max_size=3).filter(lambda key: key != "final_obs")
trees = st.recursive(
    st.dictionaries(keys, numbers, max_size=4),
    lambda inner: st.dictionaries(keys, st.one_of(numbers, inner), max_size=3),
    max_leaves=6,
)


@given(info=trees)
@settings(max_examples=150, deadline=None)
def test_any_info_of_numbers_comes_back_as_it_went_in(info):
    form = InfoSchema(get_signature(info))
    memory = memoryview(bytearray(max(form.size, 1)))
    form.pack(info, memory, 0)
    back = form.unpack(memory, 0)

    def bits(value):
        if isinstance(value, dict):
            return {key: bits(inner) for key, inner in value.items()}
        if isinstance(value, np.ndarray):
            return value.dtype.str, value.shape, value.tobytes()
        return type(value), struct.pack("d", value) if isinstance(value, float) else value

    assert bits(back) == bits(info)
