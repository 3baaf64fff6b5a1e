"""All attempts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from muniment.confine.attempts.attempt import Attempt
from muniment.confine.attempts.files import FILES
from muniment.confine.attempts.kernel import KERNEL
from muniment.confine.attempts.memory import MEMORY
from muniment.confine.attempts.network import NETWORK
from muniment.confine.attempts.processes import PROCESSES

ATTEMPTS: Final[Mapping[str, Attempt]] = {
    attempt.name: attempt for attempt in (*FILES, *MEMORY, *NETWORK, *PROCESSES, *KERNEL)
}
"""By name, in the order in which they are tried."""
