"""The same calls to tools in a fenced worker and in this process: whatever differs, the fence did it."""

from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from kit.memories import IN_A_WORKER
from muniment.kernel.decide import Confinement
from muniment.sandbox.sandbox import Sandbox


@dataclass(frozen=True)
class Both:
    """A sandbox over a worker, and one that needs none."""

    fenced: Sandbox
    plain: Sandbox

    def call(self, tool, arguments):
        """What both answer."""
        outcome = self.fenced.call(tool, arguments)
        assert outcome == self.plain.call(tool, arguments)
        return outcome

    def changes(self):
        """What both would commit, byte for byte."""
        assert self.fenced._change_set() == self.plain._change_set()
        return self.fenced.changes()


@contextmanager
def side_by_side(zygote, policy, roots, *, symlinks="refuse"):
    """Both over the same roots, which neither of them changes."""
    anywhere = replace(policy, confinement=Confinement(require="none", on_escape="refuse"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("muniment.sandbox.fence.pool.shared_zygote", lambda: zygote)
        with (
            Sandbox(anywhere, roots, symlinks=symlinks) as fenced,
            Sandbox(anywhere, roots, symlinks=symlinks, in_process=True) as plain,
        ):
            assert fenced.enforcement is IN_A_WORKER
            yield Both(fenced, plain)
