"""`slipstream evaluate RUN --video FILE`: video of episodes of the best policy."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError, ResourceError
from slipstream.core.storage.atomic_io import disk_errors
from slipstream.kernels.interpreter import Records
from slipstream.kernels.vector_env import allocate_buffers
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.factory import get_kind

if TYPE_CHECKING:
    from slipstream.training.runs.run import Run

_MAX_FRAMES = 3_000  # protects the disk from a policy that never fails
_FPS = 30
_CHANNELS = (1, 3, 4)
_LAST_FRAME_MS = 1_500  # duration of the last frame of an episode in a GIF


def record_video(run: Run, path: Path, opponent: str | None = None, episodes: int = 1) -> Path:
    """Record episodes as an animated GIF, or as MP4 if ffmpeg is installed.

    Args:
        run: run whose best policy acts.
        path: video file.
        opponent: second player of a two-player game; None: the run's own.
        episodes: number of episodes, one after another.

    Raises:
        ConfigError: the environment cannot render, or the file name has another suffix.
    """
    if path.suffix not in (".gif", ".mp4"):
        raise ConfigError(f"--video {path} has no suffix .gif or .mp4. Give such a file name.")
    if path.suffix == ".mp4" and shutil.which("ffmpeg") is None:
        raise ResourceError(
            f"--video {path} requires the program ffmpeg. Install it, or write a .gif."
        )
    recorded = _record_episodes(run, opponent, episodes)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".gif":
            _write_gif(path, recorded)
        else:
            _write_mp4(path, [frame for frames in recorded for frame in frames])
    return path


def _record_episodes(
    run: Run, opponent: str | None, episodes: int
) -> list[list[NDArray[np.uint8]]]:
    """Return the frames of each episode."""
    from slipstream.api import load_policy
    from slipstream.gym.action_masks import get_mask
    from slipstream.training.runs.matches import environment_against, load_opponent

    config = run.config
    kind = get_kind(config.env_name)
    env_id = kind.short_name
    if opponent is None:
        env = kind.renderer(config.env_settings) or RenderableEnv(kind.load(config.env_settings))
    else:
        two = load_opponent(config.env_name, opponent)
        env = RenderableEnv(environment_against(config.env_name, config.env_settings, 0, two))
    policy = load_policy(run)
    seed, frames_left = int(config.evaluation.seed), _MAX_FRAMES
    recorded: list[list[NDArray[np.uint8]]] = []
    with closing(env):
        while len(recorded) < episodes and frames_left > 0:
            observation, info = env.reset(seed=(seed + len(recorded)) % 2**31)
            frames: list[NDArray[np.uint8]] = []
            has_ended = False
            while not has_ended and len(frames) < frames_left:
                frames.append(_render_frame(env, env_id))
                mask = env.mask if isinstance(env, RenderableEnv) else None
                if policy.native.masked and not isinstance(env, RenderableEnv):
                    mask = get_mask(env, info)
                action = policy.act(observation, mask=mask)
                observation, _, terminated, truncated, info = env.step(action)
                has_ended = terminated or truncated
            frames.append(_render_frame(env, env_id))
            recorded.append(frames)
            frames_left -= len(frames)
    return recorded


class RenderableEnv:
    """Renders one sub-environment of a kernel that defines `render(s, p, d)`, uint8 [H, W, 3].

    Args:
        environment: environment with one player.

    Raises:
        ConfigError: the kernel cannot render, or more than one player acts.
    """

    def __init__(self, environment: Environment) -> None:
        kernel = getattr(environment, "kernel", None)
        if kernel is None or not hasattr(kernel.module, "render"):
            raise ConfigError(
                f"{environment.name} cannot render: the kernel has no function `render`. --video "
                "requires a gym:ID environment, or a kernel with that function, such as hockey."
            )
        if environment.spec.players > 1:
            raise ConfigError(
                f"{environment.name} has two players. Give --video an opponent, such as "
                "`--opponent strong`."
            )
        env = environment.make_eval_envs("train", 1)
        game: Any = getattr(env, "game", env)  # the game inside a `SelfPlayEnv`
        self._env, self._game, self._out = env, game, allocate_buffers(env)

    def reset(self, seed: int) -> tuple[NDArray[Any], dict[str, Any]]:
        """Reset to evaluation episode 0 of a seed."""
        first = np.zeros(1, np.int64)
        self._env.begin(first, first, seed, self._out.obs, self._out.mask)
        return self._out.obs[0].copy(), {}

    @property
    def mask(self) -> NDArray[np.bool_] | None:
        """Mask of the actions allowed next, [n]; None if all always are."""
        return None if self._out.mask is None else self._out.mask[0]

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """Step the environment; return Gymnasium's five values."""
        spec, out = self._env.spec, self._out
        row = np.asarray(action, spec.action_dtype).reshape(1, spec.action_dim)
        self._env.step(np.ascontiguousarray(row), out, 0)
        self._env.drain_episodes()
        return (
            out.obs[0].copy(),
            float(out.reward[0]),
            bool(out.terminated[0]),
            bool(out.truncated[0]),
            {},
        )

    def render(self) -> NDArray[np.uint8]:
        """Return the frame of the current state."""
        env = self._game
        s, p = Records(env.state)[0], Records(env.params)[int(env.episode_state["param_row"][0])]
        drawn: NDArray[np.uint8] = env.kernel.module.render(s, p, env.loaded.data)
        return drawn

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def _render_frame(env: Any, env_id: str) -> NDArray[np.uint8]:
    """Return the frame [height, width, 3] that an environment renders, converted to uint8 RGB."""
    from gymnasium.error import DependencyNotInstalled

    try:
        frame = env.render()
    except DependencyNotInstalled as error:
        raise ResourceError(f"--video: gym:{env_id} needs a package to render: {error}") from error
    except Exception as error:
        screen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
        advice = "" if screen else " No display was found. For MuJoCo, set MUJOCO_GL=egl."
        raise ResourceError(
            f"--video: gym:{env_id} cannot render: {error!r:.300}.{advice}"
        ) from error
    if isinstance(frame, list | tuple):  # all frames since the last call
        frame = frame[-1] if frame else None
    if frame is None:
        raise ConfigError(f"--video: gym:{env_id} renders no frames.")
    picture = np.asarray(frame)
    if picture.ndim == 2:
        picture = np.repeat(picture[..., None], 3, axis=2)
    elif picture.ndim == 3 and picture.shape[2] not in _CHANNELS and picture.shape[0] in _CHANNELS:
        picture = picture.transpose(1, 2, 0)
    if picture.ndim != 3 or picture.shape[2] not in _CHANNELS or picture.dtype.kind not in "biuf":
        raise ConfigError(
            f"--video: gym:{env_id} renders an array of shape {picture.shape} and dtype "
            f"{picture.dtype}. `render` must return uint8 [height, width, 3]."
        )
    if picture.dtype.kind in "bf" and picture.size and picture.max() <= 1:  # floats from 0 to 1
        picture = 255.0 * picture
    if not ((picture >= 0) & (picture <= 255)).all():
        raise ConfigError(
            f"--video: gym:{env_id} renders values from {picture.min():g} to {picture.max():g}. "
            "`render` must return values from 0 to 255, or floats from 0 to 1."
        )
    picture = np.repeat(picture, 3, axis=2) if picture.shape[2] == 1 else picture[..., :3]
    return np.asarray(np.rint(picture), np.uint8)


def _write_gif(path: Path, recorded: list[list[NDArray[np.uint8]]]) -> None:
    from PIL import Image

    pictures = [Image.fromarray(frame) for frames in recorded for frame in frames]
    durations: list[int] = []
    for frames in recorded:
        durations += [round(1000 / _FPS)] * (len(frames) - 1) + [_LAST_FRAME_MS]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=durations, loop=0)


def _write_mp4(path: Path, frames: list[NDArray[np.uint8]]) -> None:
    height, width = (side // 2 * 2 for side in frames[0].shape[:2])  # H.264 requires even sides
    command = ["ffmpeg", "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    command += ["-s", f"{width}x{height}", "-r", str(_FPS), "-i", "-"]
    command += ["-pix_fmt", "yuv420p", str(path)]
    content = b"".join(np.ascontiguousarray(frame[:height, :width]).tobytes() for frame in frames)
    done = subprocess.run(command, input=content, capture_output=True, check=False)
    if done.returncode:
        raise ResourceError(f"ffmpeg could not write {path}: {done.stderr.decode()[-300:]}")
