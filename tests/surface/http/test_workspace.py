"""A workspace whose roots are replaced while it is served, and whose names are asked for."""

from __future__ import annotations

import os

import pytest

from muniment.daemon import core as subject
from muniment.daemon.work import Workspace
from muniment.errors import ManagedMemoryUnavailable, PathEscape
from muniment.names import Scope
from muniment.settings import Settings
from muniment.store.state import State


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "work" / ".git").mkdir(parents=True)
    settings = Settings(tmp_path / "home", policy="strict")
    with State(settings.state) as state:
        made = Workspace(tmp_path / "work", settings, state, in_process=False)
        yield made
        made.close()


def replaced(root):
    """Put another directory where a root was bound."""
    root.trusted_path.rename(root.trusted_path.with_name("before"))
    root.trusted_path.mkdir(mode=0o700)


def test_a_root_that_was_replaced_is_said_so_once_and_then_bound_anew(workspace):
    first = workspace.place()
    names = dict(workspace.scopes())
    assert workspace.place() is first
    replaced(first.roots[Scope("user")])
    with pytest.raises(ManagedMemoryUnavailable, match="user: was replaced while it was served"):
        workspace.place()
    assert not workspace.is_open
    assert workspace.scopes() == names
    second = workspace.place()
    assert workspace.is_open
    assert second.roots[Scope("user")].inode != first.roots[Scope("user")].inode
    assert workspace.scopes() == names
    assert workspace.problem() is None


def test_a_task_that_uses_the_old_roots_keeps_them_until_the_workspace_is_closed(workspace):
    first = workspace.place()
    replaced(first.roots[Scope("user")])
    assert isinstance(workspace.problem(), ManagedMemoryUnavailable)
    second = workspace.place()
    held = [root.root.fd for place in (first, second) for root in place.roots.values()]
    assert all(os.fstat(fd) for fd in held)
    assert len(set(held)) == len(held)
    workspace.close()
    assert {root.root.fd for place in (first, second) for root in place.roots.values()} == {-1}


def test_roots_whose_names_cannot_be_told_are_closed_again(workspace, monkeypatch):
    seen = []

    def broken(_, root):
        seen.append(root)
        raise ManagedMemoryUnavailable("ledger", "is full")

    with monkeypatch.context() as patch:
        patch.setattr(subject, "root_key", broken)
        assert "is full" in str(workspace.problem())
    assert not workspace.is_open
    assert workspace.scopes() == {}
    assert [root.root.fd for root in seen] == [-1]
    assert workspace.problem() is None


# -- what recalls ----------------------------------------------------------------------------------------


def test_a_place_that_is_bound_anew_has_a_recaller_of_its_own(workspace):
    place, first = workspace.place(), workspace.recaller()
    replaced(place.roots[Scope("user")])
    with pytest.raises(ManagedMemoryUnavailable):
        workspace.recaller()
    second = workspace.recaller()
    assert second is not first
    assert workspace.recaller() is second
    assert second.recall("harpsichord").error is None
    assert isinstance(first.recall("harpsichord").error, PathEscape)
