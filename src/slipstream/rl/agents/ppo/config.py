"""Configuration of PPO with derived sizes and per-member settings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from slipstream.core.bounds import Count, Epsilon, Fraction, NotNegative, Positive, StepSize
from slipstream.core.config import tunable
from slipstream.core.errors import ConfigError
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.agents.agent import AgentConfig

ROLLOUT_ROWS = "rollout_rows"  # what a search may vary in place of the n_steps

_LARGE_ROUNDING = 2  # rounding beyond this factor suggests other sizes
_SUGGESTED_NUM_ENVS = range(
    16, 7, -1
)  # all learn equally well, the most are fastest (docs/explanation/market-rules.md, 16)


def fit_rollout(
    sizes: dict[str, Any], num_envs: int, n_steps: int, batch_size: int | None
) -> tuple[str, ...]:
    """Round the rollout up until minibatches fill it, in place.

        rows = n_steps x num_envs, the smallest multiple of both num_envs and the minibatch that is
        not below the requested number

    Args:
        sizes: sizes by name; `rollout_rows` is replaced by `n_steps`.
        num_envs: N.
        n_steps, batch_size: defaults for missing sizes.

    Returns:
        A sentence if anything was rounded.

    Raises:
        ConfigError: both `rollout_rows` and `n_steps` are given.
    """
    if ROLLOUT_ROWS in sizes and "n_steps" in sizes:
        raise ConfigError(
            f"The search space names `agent.{ROLLOUT_ROWS}` and `agent.n_steps`; the n_steps "
            "follows from the rows of a rollout: keep one of them."
        )
    batch_size = sizes.get("batch_size", batch_size)
    requested = int(sizes.pop(ROLLOUT_ROWS, int(sizes.get("n_steps", n_steps)) * num_envs))
    rows = _rows(requested, num_envs, batch_size)
    sizes["n_steps"] = rows // num_envs
    if rows == requested:
        return ()
    whole = f"{num_envs} environments"
    if batch_size is not None:
        whole += f" and minibatches of {batch_size:,} rows"
    note = f"Rollout of {requested:,} rows rounded up to {rows:,}: a multiple of {whole}"
    if rows > _LARGE_ROUNDING * requested:
        better = min(_SUGGESTED_NUM_ENVS, key=lambda n: _rows(requested, n, batch_size))
        fewer = _rows(requested, better, batch_size)
        if fewer < rows:
            note += f"; with {better} environments it would be {fewer:,}"
    return (f"{note}.",)


def _rows(requested: int, num_envs: int, batch_size: int | None) -> int:
    """Return the smallest multiple of both sizes that is at least `requested`."""
    unit = num_envs if batch_size is None else math.lcm(num_envs, batch_size)
    return unit * math.ceil(requested / unit)


class PPOConfig(AgentConfig):
    """Proximal policy optimization (Schulman et al. 2017).

    The first group may be one number, or a list with one number per member. The second group
    changes the shape of the computation and is the same for all members.
    """

    PER_MEMBER: ClassVar[tuple[str, ...]] = (
        "learning_rate",
        "clip_range",
        "ent_coef",
        "vf_coef",
        "gamma",
        "gae_lambda",
        "max_grad_norm",
        "adam_eps",
        "target_kl",
    )

    learning_rate: StepSize | tuple[StepSize, ...] = Field(
        3e-4, description="Learning rate of Adam.", json_schema_extra=tunable(1e-4, 3e-3, log=True)
    )
    learning_rate_schedule: Literal["constant", "linear"] = Field(
        "constant",
        description="Learning rate schedule; linear decays to 0 at the end of the budget.",
        json_schema_extra=tunable(choices=["constant", "linear"], by_default=False),
    )
    clip_range: Positive | tuple[Positive, ...] = Field(
        0.2,
        description="PPO clip range: probability ratios are clipped to [1 - eps, 1 + eps].",
        json_schema_extra=tunable(0.1, 0.4),
    )
    ent_coef: NotNegative | tuple[NotNegative, ...] = Field(
        0.0,
        description="Entropy coefficient of the loss.",
        json_schema_extra=tunable(1e-5, 1e-2, log=True),
    )
    vf_coef: NotNegative | tuple[NotNegative, ...] = Field(
        0.5,
        description="Value function coefficient of the loss.",
        json_schema_extra=tunable(0.25, 1.0),
    )
    gamma: Fraction | tuple[Fraction, ...] = Field(
        0.99,
        description="Discount factor per step.",
        json_schema_extra=tunable(choices=[0.8, 0.9, 0.95, 0.98, 0.99, 0.995]),
    )
    gae_lambda: Fraction | tuple[Fraction, ...] = Field(
        0.95,
        description="Lambda of generalized advantage estimation (GAE).",
        json_schema_extra=tunable(0.3, 0.99),
    )
    max_grad_norm: Positive | tuple[Positive, ...] | None = Field(
        0.5,
        description="Maximum gradient norm per member; null disables clipping.",
        json_schema_extra=tunable(0.3, 2.0, log=True),
    )
    adam_eps: Epsilon | tuple[Epsilon, ...] = Field(
        1e-5,
        description="Epsilon of Adam.",
        json_schema_extra=tunable(1e-9, 1e-5, log=True, by_default=False),
    )
    target_kl: Positive | tuple[Positive, ...] | None = Field(
        None,
        description="KL early stopping at 1.5 times this value; null disables it.",
        json_schema_extra=tunable(0.005, 0.03, log=True, by_default=False),
    )
    observation_normalization: bool = Field(
        True,
        description="Normalize observation columns without a fixed scale by running statistics.",
    )
    reward_scaling: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Divide rewards by a running deviation of the return; auto: only on markets.",
    )
    normalize_advantage: bool = Field(
        True,
        description="Normalize advantages to mean 0 and standard deviation 1 in each minibatch.",
    )

    ROWS_TO_SHARE: ClassVar[int] = 1024  # of a minibatch: two cores gain more than they wait
    LENGTHS: ClassVar[tuple[str, ...]] = ("n_steps",)
    SIZES: ClassVar[tuple[str, ...]] = ("n_steps", "net_arch")
    FITTED: ClassVar[tuple[str, ...]] = (ROLLOUT_ROWS, "n_steps", "batch_size")

    n_steps: Count = Field(
        128,
        description="Steps per environment and rollout.",
        json_schema_extra=tunable(6, 9, power_of=2, by_default=False),
    )
    batch_size: Annotated[int, Field(ge=2)] | None = Field(
        None,
        description="Minibatch size per member; null uses a quarter of the rollout.",
        json_schema_extra=tunable(6, 10, power_of=2, by_default=False),
    )
    n_epochs: Count = Field(
        4,
        description="Epochs per rollout.",
        json_schema_extra=tunable(2, 12, by_default=False),
    )
    net_arch: tuple[Count, ...] = Field(
        (64, 64),
        min_length=1,
        description="Hidden layer widths.",
        json_schema_extra=tunable(choices=[[32, 32], [64, 64], [128, 128]], by_default=False),
    )
    activation: Literal["tanh", "relu"] = Field(
        "tanh",
        description="Activation between layers.",
        json_schema_extra=tunable(choices=["tanh", "relu"], by_default=False),
    )
    init_std: Positive = Field(
        0.6, description="Initial standard deviation of continuous actions in [-1, 1]."
    )

    def iteration_steps(self, num_envs: int) -> int:
        """Return T, the steps of a rollout."""
        return self.n_steps

    def updates(self, num_envs: int) -> int:
        """Return the number of minibatches of all epochs."""
        return self.n_epochs * (self.n_steps * num_envs // self.rows(num_envs))

    def rows(self, num_envs: int) -> int:
        """Return the rows B of a minibatch per member, for N environments per member.

        Raises:
            ConfigError: when minibatches do not fill the rollout exactly.
        """
        total = self.n_steps * num_envs
        if self.batch_size is None:
            return next(total // k for k in (4, 3, 2, 1) if total % k == 0)
        if total % self.batch_size:
            raise ConfigError(
                f"`agent.batch_size` = {self.batch_size} does not divide a member's rollout of "
                f"n_steps {self.n_steps} x {num_envs} environments = {total} rows. Nearest "
                f"values that do: {_nearest_divisors(total, self.batch_size)}."
            )
        return self.batch_size

    def parts(self, num_envs: int) -> int:
        """Return the number of equal parts of a minibatch's gradient, which two cores may compute.

        They follow from the member's own rows: were they another number beside other members, its
        sums would be added in another order, and its weights would be other bits.
        """
        rows = self.rows(num_envs)
        return 2 if rows >= self.ROWS_TO_SHARE and rows % 2 == 0 else 1

    def check(self, num_envs: int) -> None:
        """Raise ConfigError if minibatches do not fill the rollout."""
        self.rows(num_envs)

    def relax_sizes(self, num_envs: int, user_set: Container[str]) -> Self:
        """Drop a suggested minibatch size that does not divide the rollout."""
        rows = self.batch_size
        if "batch_size" in user_set or rows is None or (self.n_steps * num_envs) % rows == 0:
            return self
        return self.model_copy(update={"batch_size": None})

    def fit(self, sizes: dict[str, Any], num_envs: int) -> tuple[str, ...]:
        """Round the rollout up until minibatches fill it; convert `rollout_rows` to n_steps."""
        return fit_rollout(sizes, num_envs, self.n_steps, self.batch_size)

    def weight_bytes(self, spec: EnvSpec) -> int:
        """Return the bytes of actor and critic, float32, with biases."""
        inputs = int(np.prod(spec.observation_shape)) + 1
        widths = (inputs, *self.net_arch, spec.num_actions or spec.action_dim)
        return 2 * 4 * sum(a * b for a, b in itertools.pairwise(widths))

    def state_bytes(self, spec: EnvSpec) -> int:
        """Return the bytes of weights and two moments."""
        return 3 * self.weight_bytes(spec)

    def bytes(self, spec: EnvSpec, members: int, num_envs: int) -> int:
        """Return the bytes of rollout, update, and weights with gradient and two moments."""
        from slipstream.rl.experience.rollout import rollout_bytes

        rollout = rollout_bytes(spec, self.n_steps, members, num_envs)
        update = update_bytes(spec, self.n_steps, members, num_envs)
        return rollout + update + 4 * self.weight_bytes(spec) * members


def update_bytes(spec: EnvSpec, n_steps: int, members: int, num_envs: int) -> int:
    """Return the bytes of an update besides the rollout.

    Scaled observations and the losses' rows are of one member at a time.
    """
    from slipstream.rl.nets.networks import input_width

    rows = num_envs * (n_steps + 1)
    image = spec.observation_dtype == np.uint8 and len(spec.observation_shape) == 3
    numbers = 0 if image else input_width(int(np.prod(spec.observation_shape)))
    # Packed columns and orders; the float copy of actions, reward, value, advantage, target
    # and their temporaries.
    return 4 * rows * (numbers + spec.action_dim + 9 + members * (spec.action_dim + 6))


def _nearest_divisors(total: int, wanted: int) -> str:
    divisors = sorted(
        {d for k in range(1, int(total**0.5) + 1) if total % k == 0 for d in (k, total // k)}
    )
    below = [d for d in divisors if 2 <= d < wanted][-1:]
    above = [d for d in divisors if d > wanted][:1]
    return " and ".join(str(d) for d in below + above)


Config = PPOConfig
