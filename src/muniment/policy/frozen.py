"""What comes from outside in a known shape. Apart, since a worker checks arguments and holds no tables."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A value that refuses unknown keys, other types and change."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
