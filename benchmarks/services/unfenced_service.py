"""The usual service in a worker without a kernel fence, as the baseline for the fence."""

from __future__ import annotations

from muniment.sandbox.fence import layers
from muniment.sandbox.tools.service import serve, warm

layers.STEPS = {}

__all__ = ["serve", "warm"]
