"""Check whether a policy can be applied on this system.

Without a fence, no run writes unless the policy allows it.

Linux has the fence, which confines workers; `sandbox` checks it there. Other systems have none (`portable`).
So all code that writes a memory, for an agent or by hand, checks here first.
"""

from __future__ import annotations

from muniment.errors import PlatformUnsupported
from muniment.kernel.decide import Policy
from muniment.kernel.names import Enforcement
from muniment.portable import IS_LINUX, NEEDS_LINUX


def may_write(policy: Policy) -> bool:
    """Return whether a policy allows writing a memory here: on Linux, or if it requires no fence."""
    return IS_LINUX or policy.confinement.require is Enforcement.NONE


def require_writing(policy: Policy) -> None:
    """Raise unless `may_write` returns True for the policy.

    Raises:
        PlatformUnsupported: the message states what to do.
    """
    if not may_write(policy):
        raise PlatformUnsupported(NEEDS_LINUX)
