"""Streams of random numbers: known values, and the same bits however they are computed."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from slipstream.core import random
from slipstream.jit import codegen, rng

WORD = 2**64
BIG = 2**63 + 5

# First outputs of SplitMix64 seeded with 1234567, as published with the reference code.
SPLITMIX_1234567 = (
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
)


@pytest.fixture(autouse=True)
def _words_wrap():
    with np.errstate(over="ignore"):
        yield


def exact_mix(x):
    """SplitMix64's finaliser with integers of any size."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % WORD
    return x ^ (x >> 31)


def exact_word(key, counter):
    return exact_mix(key ^ exact_mix((counter + 1) * 0x9E3779B97F4A7C15 % WORD))


def record(key, counter=0):
    return SimpleNamespace(key=np.uint64(key), counter=np.uint64(counter))


def test_mix_is_splitmix64():
    golden = np.uint64(0x9E3779B97F4A7C15)
    x = np.uint64(1234567)
    for expected in SPLITMIX_1234567:
        x = x + golden
        assert int(random.mix(x)) == expected


@pytest.mark.parametrize("key", [0, 1, BIG, WORD - 1])
@pytest.mark.parametrize("counter", [0, 1, BIG, WORD - 1])
def test_words_above_two_to_the_63(key, counter):
    assert int(random.word(np.uint64(key), np.uint64(counter))) == exact_word(key, counter)


def test_stream_depends_on_every_part():
    keys = {
        int(random.stream(np.uint64(a), np.uint64(b), np.uint64(c)))
        for a in (0, 1, BIG)
        for b in (0, 1, 2)
        for c in (0, 1, WORD - 1)
    }
    assert len(keys) == 27


def test_streams_are_pinned():
    """A change here would change every trajectory anybody has recorded."""
    key = random.stream(np.uint64(7), np.uint64(3), np.uint64(2))
    assert int(key) == exact_word(exact_word(exact_word(0x9E3779B97F4A7C15, 7), 3), 2)
    s = record(key)
    bits = [exact_word(int(key), i) for i in range(2)]
    assert random.uniform(s) == (bits[0] >> 11) / 2**53
    assert random.uniform(s) == (bits[1] >> 11) / 2**53
    assert int(s.counter) == 2


def test_uniform_normal_integer_have_their_distributions():
    s = record(11)
    u = np.array([random.uniform(s) for _ in range(20_000)])
    assert u.min() >= 0.0 and u.max() < 1.0
    assert abs(u.mean() - 0.5) < 4 / math.sqrt(12 * len(u))
    z = np.array([random.normal(s) for _ in range(20_000)])
    assert abs(z.mean()) < 4 / math.sqrt(len(z)) and abs(z.std() - 1) < 0.02
    n = np.bincount([random.integer(s, 6) for _ in range(12_000)])
    assert len(n) == 6 and abs(n - 2000).max() < 4 * math.sqrt(2000)
    assert int(s.counter) == 20_000 + 40_000 + 12_000


def test_interpreted_equals_compiled():
    text = """
def fill(state, out):
    for e in range(len(state)):
        s = state[e]
        out[e, 0] = uniform(s)
        out[e, 1] = normal(s)
        out[e, 2] = float(integer(s, 1000))
"""
    bindings = {name: getattr(random, name) for name in ("uniform", "normal", "integer")}
    dtype = np.dtype([("key", "u8"), ("counter", "u8")], align=True)
    states, outs = [np.zeros(50, dtype) for _ in range(2)], [np.zeros((50, 3)) for _ in range(2)]
    for state in states:
        state["key"] = np.arange(50, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        state["counter"] = np.uint64(BIG)
    entries = {"fill": (states[0], outs[0])}
    codegen.compile_module("test_random", text, entries, bindings, {})["fill"](states[0], outs[0])
    codegen.build_interpreted(text, bindings, {}).fill(states[1].view(np.recarray), outs[1])
    assert (outs[0] == outs[1]).all()
    assert (states[0] == states[1]).all() and states[0]["counter"][0] == BIG + 4


def test_vectorised_keys_equal_scalar_ones():
    seeds = [0, 5, BIG, -1]
    keys = rng.member_keys(seeds, rng.ACT, np.arange(3))
    assert keys.shape == (3, 4) and keys.dtype == np.uint64
    for step in range(3):
        for m, seed in enumerate(seeds):
            one = random.stream(np.uint64(seed % WORD), np.uint64(rng.ACT), np.uint64(step))
            assert keys[step, m] == one
            assert rng.member_keys([seed], rng.ACT, step)[0] == one


@pytest.mark.parametrize("name", ["gumbel", "normal"])
def test_rows_equal_interpreted_rows(name):
    keys = rng.member_keys([3, BIG], rng.ACT, 4)
    compiled, plain = np.zeros((2, 33), np.float32), np.zeros((2, 33), np.float32)
    getattr(rng, f"fill_{name}")(keys, 2, compiled)
    getattr(rng, f"{name}_rows")(keys, 2, plain)
    assert (compiled == plain).all()
    later = np.zeros((2, 30), np.float32)
    getattr(rng, f"fill_{name}")(keys, 5, later)
    assert (later == compiled[:, 3:]).all(), "a stream is read from any place"


def test_permutations():
    keys = rng.member_keys(range(400), rng.MINIBATCH, 0)
    rows = np.zeros((400, 9), np.int64)
    rng.permute(keys, rows)
    assert (np.sort(rows, axis=1) == np.arange(9)).all()
    alone = np.zeros((1, 9), np.int64)
    rng.permute(keys[5:6], alone)
    assert (alone[0] == rows[5]).all()
    assert np.bincount(rows[:, 0], minlength=9).min() > 20
