"""Ranges of numbers that the settings of several agents have."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

# Far beyond what learns; within what float32 weights and their squares can hold.
StepSize = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0, le=1e6)]
NotNegative = Annotated[float, Field(ge=0, le=1e6)]
Epsilon = Annotated[float, Field(ge=1e-12, le=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Steps = Annotated[int, Field(ge=0)]
