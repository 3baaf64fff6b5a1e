"""The same calls to tools in a fenced worker and in this process: whatever differs, the fence did it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit.memories import IN_A_WORKER
from muniment.confine.pool import Zygote
from muniment.policy.decide import Confinement, Policy
from muniment.sandbox import Sandbox
from muniment.tools.calls import Outcome


@dataclass(frozen=True)
class Both:
    """A sandbox over a worker, and one that needs none."""

    fenced: Sandbox
    plain: Sandbox

    def call(self, tool: object, arguments: object) -> Outcome:
        """What both answer."""
        outcome = self.fenced.call(tool, arguments)
        assert outcome == self.plain.call(tool, arguments)
        return outcome

    def changes(self) -> list[Any]:
        """What both would commit, byte for byte."""
        assert self.fenced._change_set() == self.plain._change_set()
        return self.fenced.changes()


@contextmanager
def side_by_side(
    zygote: Zygote, policy: Policy, roots: Mapping[str, Path], *, symlinks: str = "refuse"
) -> Iterator[Both]:
    """Both over the same roots, which neither of them changes."""
    anywhere = policy.model_copy(update={"confinement": Confinement(require="none", on_escape="refuse")})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("muniment.sandbox.shared_zygote", lambda: zygote)
        with (
            Sandbox(anywhere, roots, symlinks=symlinks) as fenced,
            Sandbox(anywhere, roots, symlinks=symlinks, in_process=True) as plain,
        ):
            assert fenced.enforcement is IN_A_WORKER
            yield Both(fenced, plain)
