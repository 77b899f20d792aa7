"""Frames of a film, from whatever an environment's `render` returns."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from slipstream.cli.video import _render_frame
from slipstream.core.errors import ConfigError, ResourceError

FRAME = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def picture(rendered):
    return _render_frame(SimpleNamespace(render=lambda: rendered), "Own-v0")


@pytest.mark.parametrize(
    "rendered",
    [
        FRAME,
        [FRAME[::-1], FRAME],
        FRAME.transpose(2, 0, 1),
        FRAME.astype(np.float32) / 255,
        FRAME.astype(np.float64),
        FRAME.astype(np.int64),
        np.concatenate([FRAME, FRAME[..., :1]], axis=2),
    ],
    ids=["plain", "list", "channels first", "shares", "floats", "integers", "alpha"],
)
def test_every_form_gives_the_same_frame(rendered):
    found = picture(rendered)
    assert found.dtype == np.uint8 and (found == FRAME).all()


@pytest.mark.parametrize("gray", [FRAME[..., 0], FRAME[..., :1], FRAME[None, ..., 0]])
def test_gray_is_drawn_in_three_channels(gray):
    assert (picture(gray) == FRAME[..., :1]).all() and picture(gray).shape == FRAME.shape


@pytest.mark.parametrize(
    ("rendered", "problem"),
    [
        (None, "renders no frames"),
        ([], "renders no frames"),
        ("+--+", "shape"),
        (np.zeros((5, 6, 7, 3)), "shape"),
        (FRAME.astype(float) - 10, "values from -10"),
        (np.full((4, 6, 3), np.nan), "values from nan"),
    ],
)
def test_what_is_no_picture_is_refused(rendered, problem):
    with pytest.raises(ConfigError, match=problem):
        picture(rendered)


def test_without_a_display_egl_is_named(monkeypatch):
    def render():
        raise RuntimeError("gladLoadGL error")

    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ResourceError, match=r"gladLoadGL error.*set MUJOCO_GL=egl"):
        _render_frame(SimpleNamespace(render=render), "Own-v0")
