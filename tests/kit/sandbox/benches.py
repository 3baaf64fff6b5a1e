"""Workbenches in the test process."""

from __future__ import annotations

from dataclasses import dataclass

from kit.kernel.trees import Failing
from kit.memories import SCOPES, handles, make_roots, strict
from muniment.kernel.root import Root
from muniment.sandbox.tools.workbench import Workbench


@dataclass
class Bench:
    """A workbench with the paths of its roots."""

    workbench: Workbench
    roots: dict

    def __call__(self, tool, **arguments):
        return self.workbench.call(tool, arguments)

    @property
    def user(self):
        return self.roots["user"]

    def claims(self):
        return {claim.path.text: claim.digest for claim in self.workbench.change_set().claims}

    def pending(self):
        return {item.path.text: item for item in self.workbench.change_set().changes}


def make_bench(base, policy=None, *, must_read=False, roots=None):
    roots = roots or make_roots(base)
    return Bench(Workbench(policy or strict(), SCOPES, handles(roots), must_read=must_read), roots)


def failing_bench(base, errors, policy=None):
    """Create a workbench over existing roots under `base` whose opens fail as `errors` defines."""
    roots = {scope: base / scope for scope in SCOPES}
    held = {
        scope: Root(scope, root.fd, Failing(errors, root.resolver)) for scope, root in handles(roots).items()
    }
    return Bench(Workbench(policy or strict(), SCOPES, held, must_read=False), roots)
