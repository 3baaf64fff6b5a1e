"""The same tool calls in a confined worker and in this process: every difference is caused by the fence."""

from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from kit.memories import WORKER_CONFINEMENT
from muniment.kernel.decide import ConfinementRequirement
from muniment.sandbox.sandbox import Sandbox


@dataclass(frozen=True)
class SandboxPair:
    """A sandbox with a worker, and one without."""

    fenced: Sandbox
    plain: Sandbox

    def call(self, tool, arguments):
        """Return the outcome of both, which must be equal."""
        outcome = self.fenced.call(tool, arguments)
        assert outcome == self.plain.call(tool, arguments)
        return outcome

    def changes(self):
        """Return the changes of both, which must be identical bytes."""
        assert self.fenced._read_change_set() == self.plain._read_change_set()
        return self.fenced.changes()


@contextmanager
def open_pair(zygote, policy, roots, *, symlinks="refuse"):
    """Open both over the same roots, which neither changes."""
    unconfined = replace(policy, confinement=ConfinementRequirement(require="none", on_escape="refuse"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("muniment.sandbox.fence.pool.get_shared_zygote", lambda: zygote)
        with (
            Sandbox(unconfined, roots, symlinks=symlinks) as fenced,
            Sandbox(unconfined, roots, symlinks=symlinks, in_process=True) as plain,
        ):
            assert fenced.enforcement is WORKER_CONFINEMENT
            yield SandboxPair(fenced, plain)
