"""The real service in a zygote without a fence, which reports that no layer is missing."""

from muniment.sandbox.fence import layers
from muniment.sandbox.tools.service import serve, warm

layers.STEPS = {}

__all__ = ["serve", "warm"]
