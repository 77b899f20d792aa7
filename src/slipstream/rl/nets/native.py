"""The outside of a policy: observations, masks and actions as the environment itself knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.kernels.forms import (
    KEY,
    ActionForm,
    MisfitError,
    ObservationForm,
    action_form,
    observation_form,
)
from slipstream.kernels.spec import Spec


@dataclass(frozen=True)
class Native:
    """Turns what the environment shows into rows [M * R, ...], and rows of actions back.

    Attributes:
        observed, acted: forms of the spaces.
        members: M.
        sizes: choices of each component of an action, () for a Box.
        masked: the environment says which choices are allowed, and the policy must be told.
    """

    observed: ObservationForm
    acted: ActionForm
    members: int
    sizes: tuple[int, ...]
    masked: bool = False

    @classmethod
    def of(cls, spec: Spec, members: int, sizes: tuple[int, ...]) -> Native:
        """Forms of an environment's own observations and actions."""
        return cls(observation_form(spec), action_form(spec), members, sizes, bool(spec.masked))

    def rows(self, obs: Any) -> tuple[NDArray[Any], tuple[int, ...]]:
        """Rows [M * R, *shape] and the axes before an observation's own, () for a single one.

        Raises:
            ConfigError: another form, or NaN.
        """
        members = self.members
        axes = "the members first, then the batch axis" if members > 1 else "the batch axis first"
        try:
            rows, lead = self.observed.rows(obs)
        except MisfitError as error:
            raise ConfigError(
                f"The policy was given {error}. It takes one observation ({self.observed.words}) "
                f"or a batch of them, {axes}, as the environment shows them: neither flattened nor "
                "scaled."
            ) from None
        if len(lead) > (2 if members > 1 else 1) or (members > 1 and lead[:1] != (members,)):
            raise ConfigError(
                f"The policy was given observations with the axes {lead} before their own "
                f"{rows.shape[len(lead) :]}, and it has {members} member(s): give one observation "
                f"or a batch, {axes}."
            )
        rows = np.ascontiguousarray(rows.reshape(-1, *self.observed.shape))
        if not np.isfinite(rows).all():
            raise ConfigError(
                "The policy was given an observation with NaN or infinity in it; an action for it "
                "would mean nothing. Mend what made the observation."
            )
        return rows, lead

    def offered(self, obs: Any) -> Any:
        """Return the mask that is a part of observations; None if the policy needs none."""
        if not self.masked:
            return None
        if isinstance(obs, list):
            parts = [self.offered(one) for one in obs]
            return None if any(part is None for part in parts) else np.stack(parts)
        return np.asarray(obs[KEY]) > 0 if isinstance(obs, Mapping) and KEY in obs else None

    def allowed(self, mask: Any, lead: tuple[int, ...], rows: int) -> NDArray[np.bool_] | None:
        """A mask as rows [M * R, choices]; None where all choices are allowed.

        Raises:
            ConfigError: it is missing, of another form, or allows nothing.
        """
        choices = sum(self.sizes)
        if mask is None:
            if self.masked:
                raise ConfigError(
                    "This policy was trained with a mask of allowed choices and does not act "
                    f"without one: give mask=, bool of shape {(*lead, choices)} (`env.mask` of "
                    "slipstream.make_vec)."
                )
            return None
        if not choices:
            raise ConfigError(
                "This policy acts in a Box, of which nothing can be masked: leave `mask` out."
            )
        allowed = np.asarray(mask)
        if allowed.shape != (*lead, choices) or allowed.dtype.kind not in "biu":
            raise ConfigError(
                f"`mask` must be bool of shape {(*lead, choices)}, the batch axis first; it is "
                f"{allowed.dtype} of shape {allowed.shape}."
            )
        allowed = np.ascontiguousarray(allowed.reshape(rows, choices), np.bool_)
        some = np.logical_or.reduceat(allowed, np.cumsum([0, *self.sizes[:-1]]), axis=1)
        if not some.all():
            row, part = (int(i) for i in np.argwhere(~some)[0])
            which = f", component {part}" if len(self.sizes) > 1 else ""
            raise ConfigError(
                f"`mask` allows nothing in row {row}{which}; at least one choice must be allowed."
            )
        return allowed

    def actions(self, rows: NDArray[Any], lead: tuple[int, ...]) -> Any:
        """Actions [*lead, ...] of the environment's own space for rows [M * R, K]."""
        return self.acted.native(rows.reshape(*lead, rows.shape[-1]))

    def description(self) -> dict[str, Any]:
        """JSON-able form, for a policy's manifest."""
        return {
            "observation": self.observed.description,
            "layout": self.observed.layout,
            "action": self.acted.description,
            "masked": self.masked,
        }

    def with_description(self, description: Mapping[str, Any]) -> Native:
        """A copy whose outside is as a manifest describes it; its rows stay."""
        return replace(
            self,
            observed=ObservationForm(description["observation"], description["layout"]),
            acted=ActionForm(description["action"], self.acted.start),
            masked=bool(description["masked"]),
        )
