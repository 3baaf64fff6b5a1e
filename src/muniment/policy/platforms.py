"""Whether this system lets a policy be carried out: no run writes where nothing fences it, unless asked to.

Linux has the fence, and `sandbox` sees to it there. Elsewhere there is none (`portable`), so that whatever
would write a memory, by an agent or by hand, asks here first.
"""

from __future__ import annotations

from muniment.errors import PlatformUnsupported
from muniment.kernel.decide import Policy
from muniment.kernel.names import Enforcement
from muniment.portable import IS_LINUX, NEEDS_LINUX


def may_write(policy: Policy) -> bool:
    """Whether memory may be written here under a policy: on Linux, or where it requires no fence."""
    return IS_LINUX or policy.confinement.require is Enforcement.NONE


def require_writing(policy: Policy) -> None:
    """Raise unless `may_write`.

    Raises:
        PlatformUnsupported: with what to do instead.
    """
    if not may_write(policy):
        raise PlatformUnsupported(NEEDS_LINUX)
