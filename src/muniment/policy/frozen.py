"""Base class of checked input. Separate, since a worker checks arguments but does not load tables."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable value that rejects unknown keys and other types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
