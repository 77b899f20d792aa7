"""VectorizedEnvConfig: how many copies are stepped, and by what, in words of older systems."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationError

from slipstream.core.bounds import Count
from slipstream.core.config import Config, refusal
from slipstream.training.environments.factory import kind_of


class VectorizedEnvConfig(Config):
    """Copies of a service's job.

    A kernel is always stepped compiled, whatever `env_type` says; a ``gym:ID`` one after the other
    in the training's process (``DummyVecEnv``), or in worker processes (``SubprocVecEnv``), where
    those work. Results say which it was.
    """

    env_type: Literal["DummyVecEnv", "SubprocVecEnv"] = Field(
        "DummyVecEnv", description="how copies of a gym:ID are stepped; changes no result"
    )
    num_envs: Count = Field(4, description="copies, per member")
    max_concurrent_envs: Count = Field(
        8, description="copies that no job may have more of while this one has not ended"
    )
    enable_monitoring: bool = Field(
        True, description="results say what the job took of memory, processor and cards"
    )

    def __init__(self, **values: Any) -> None:
        """Fields by name, as a program gives them.

        Raises:
            ConfigError: in a paragraph.
        """
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise refusal(type(self), error, "vectorized") from None

    def training(self, env_name: str) -> dict[str, Any]:
        """What it means for a run's `training` section."""
        chosen: Any = "auto"
        if "process" in kind_of(env_name).backends:
            chosen = "serial"
            if self.env_type == "SubprocVecEnv":
                chosen = {"try": ["process", "serial"]}
        return {"num_envs": self.num_envs, "backend": chosen}
