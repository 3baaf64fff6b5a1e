"""Describe the inputs of catalog rows.

Separate from `trust.py`, because the completion of a shell needs only this function, and must start quickly.
"""

from __future__ import annotations

from muniment.content.frontmatter import EXPIRY_KEY
from muniment.kernel.decide import Policy
from muniment.kernel.names import Scope
from muniment.names import __version__


def compute_basis(policy: Policy, scope: Scope) -> str:
    """Return a text that describes all inputs of catalog rows except files and vectors.

    If this text changes, the rows must be computed again. It contains the version, because the version
    defines the checks.
    """
    retention = policy.retention
    return f"{__version__} {EXPIRY_KEY} {policy.get_trust(scope)} {retention.default} {retention.untrusted}"
