"""The base class of models for checked input.

Separate from `tables`, so that an integration can check arguments without the models of policy files.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Base class of immutable models that reject unknown keys, and values of other types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
