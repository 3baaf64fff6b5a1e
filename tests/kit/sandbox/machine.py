"""Confinement that the kernel of this machine supports, measured without the product, to skip tests of the
fence.

If the product does not find an available fence, these tests must fail, not be skipped.
"""

import ctypes

import pytest

FULL_ABI = 3
"""The first Landlock ABI with which a run has the confinement `full`."""

_CREATE_RULESET = 444
_ASK_VERSION = 1


def landlock_abi():
    """Return the Landlock ABI version that the kernel reports to landlock_create_ruleset, or 0."""
    ask = ctypes.CDLL(None).syscall
    return max(ask(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION)), 0)


HAS_FENCE = landlock_abi() >= FULL_ABI
needs_fence = pytest.mark.skipif(not HAS_FENCE, reason="this kernel does not support the full fence")
needs_landlock = pytest.mark.skipif(landlock_abi() == 0, reason="this kernel does not support Landlock")
