"""What a policy requires to hold the worker of a run, compared with what does. The broker's only."""

from __future__ import annotations

from muniment.confine.evidence import IN_PROCESS, Held
from muniment.errors import ConfinementUnavailable
from muniment.names import Enforcement
from muniment.policy.decide import Policy


def require(policy: Policy, held: Held) -> None:
    """Refuse a run that is held less than its policy requires.

    Raises:
        ConfinementUnavailable: it is; the message names what is missing and what to do.
    """
    required = policy.confinement.require
    if held.enforcement.satisfies(required):
        return
    if held.enforcement is Enforcement.NONE:
        remedy = 'run it in a worker, or use a policy that says require = "none"'
    else:
        remedy = (
            f"the kernel does not hold {', '.join(held.missing)}; 'muniment doctor' says why, "
            'or use a policy that requires "partial"'
        )
    raise ConfinementUnavailable(required, held.enforcement, remedy)


def check_enforcement(policy: Policy, *, in_process: bool) -> None:
    """`require`, as far as it is known before a worker is started.

    Raises:
        ConfinementUnavailable: the tools would run in this process, and the policy requires a worker.
    """
    if in_process:
        require(policy, IN_PROCESS)
