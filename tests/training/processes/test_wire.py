"""What machines send each other: whole, exactly what was meant, and never code."""

import json
import pickle

import numpy as np
import pytest

from slipstream.core.errors import CheckpointError
from slipstream.training.processes.wire import digest_of, pack, unpack


def test_a_parcel_is_what_was_packed():
    value = {"a": [1, 0.1 + 0.2, None, True, (2, "x")], "b": {"c": b"\0\1", "d": b""}}
    assert unpack(pack(value)) == {**value, "a": [1, 0.1 + 0.2, None, True, [2, "x"]]}
    assert unpack(pack([np.float64(0.1), np.int64(3), float("inf")])) == [0.1, 3, float("inf")]


@pytest.mark.parametrize(
    "array",
    [
        np.array([0.1, np.nan, -0.0, 1e-300, np.inf]),
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        np.array([[True, False]]),
        np.zeros((0, 4), np.float32),
        np.array(7, np.uint64),
    ],
)
def test_arrays_arrive_to_the_bit(array):
    found = unpack(pack({"x": array}))["x"]
    assert found.dtype == array.dtype and found.shape == array.shape
    assert found.tobytes() == array.tobytes()


def test_damage_is_refused():
    content = pack({"a": 1, "x": bytes(100)})
    for bad in (content[:-1], content[:30], content[:-1] + b"\1", content + b"\0"):
        with pytest.raises(CheckpointError, match="damaged"):
            unpack(bad)
    for bad in (b"", b"garbage", pickle.dumps({"a": 1}), json.dumps({"a": 1}).encode()):
        with pytest.raises(CheckpointError, match="not slipstream's"):
            unpack(bad)


def test_what_is_no_plain_value_is_not_sent():
    for bad in (object(), {1: 2}, {"\0blob": 1}, np.array([object()]), {"a": {1}}):
        with pytest.raises(TypeError, match="parcel"):
            pack(bad)


def test_a_digest_knows_types_shapes_and_bits():
    one = np.arange(4.0)
    others = (one.astype("f4"), one.reshape(2, 2), -one, one.view("i8"))
    digests = {digest_of([other]) for other in (one, *others)}
    assert len(digests) == 5 and digest_of([one.copy()]) == digest_of([one])
    assert digest_of([one, one]) != digest_of([np.concatenate([one, one])])
