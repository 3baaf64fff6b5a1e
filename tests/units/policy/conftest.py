"""Shared by the tests of policies."""

from __future__ import annotations

import pytest

from kit.policy.files import write
from muniment.lab.review import lint


@pytest.fixture
def found(tmp_path):
    """What lint says of `own`, as (code, line) and, with `whole`, all of it."""

    def found(body, *, extends=(), whole=False, **parents):
        for name, text in parents.items():
            write(tmp_path / f"{name}.toml", body=text)
        path = write(tmp_path / "own.toml", body=body, extends=extends)
        findings = lint(path)
        assert all(each.fix and each.problem for each in findings)
        return findings if whole else [(each.code, each.line) for each in findings]

    return found
