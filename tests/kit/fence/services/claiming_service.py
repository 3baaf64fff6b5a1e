"""The real service in a zygote whose fence was taken away, and which says that nothing is missing."""

from muniment.fence import layers
from muniment.tools.service import serve, warm

layers.STEPS = {}

__all__ = ["serve", "warm"]
