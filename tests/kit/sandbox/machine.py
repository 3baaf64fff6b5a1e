"""What this machine's kernel offers, asked without the product: by this, tests of the fence are skipped.

A product that finds no fence where there is one must make those tests fail, not vanish.
"""

import ctypes

import pytest

FULL_ABI = 3
"""The first Landlock ABI behind which a run may call itself `full`."""

_CREATE_RULESET = 444
_ASK_VERSION = 1


def landlock_abi():
    """The kernel's answer to landlock_create_ruleset(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION); 0: none."""
    ask = ctypes.CDLL(None).syscall
    return max(ask(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION)), 0)


HAS_FENCE = landlock_abi() >= FULL_ABI
needs_fence = pytest.mark.skipif(not HAS_FENCE, reason="this kernel offers no full fence")
needs_landlock = pytest.mark.skipif(landlock_abi() == 0, reason="this kernel has no Landlock")
