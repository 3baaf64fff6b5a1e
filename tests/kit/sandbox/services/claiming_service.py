"""The real service in a zygote whose fence was taken away, and which says that nothing is missing."""

from muniment.sandbox.fence import layers
from muniment.sandbox.tools.service import serve, warm

layers.STEPS = {}

__all__ = ["serve", "warm"]
