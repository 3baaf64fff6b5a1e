"""A change as the broker sees it, and which scopes a change-set touches."""

from __future__ import annotations

import pytest

from muniment.names import RelPath, Scope, Verb
from muniment.policy.grammar import CanonicalPath
from muniment.store.ledger import Change, Draft, classify_touched_scopes
from store.ground import laid_out, sha


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as made:
        yield made


def draft_of(root, path, before, after=b"after"):
    scope, _, rel = path.partition("/")
    return Draft(CanonicalPath(Scope(scope), RelPath(rel)), root, before, after)


def test_what_was_absent_is_created_and_what_was_empty_is_changed(ground):
    user = ground.roots["user"]
    created, changed = draft_of(user, "user/x.md", None), draft_of(user, "user/x.md", b"")
    assert (created.verb, created.change) == (
        Verb.CREATE,
        Change("user/x.md", "create", None, sha(b"after")),
    )
    assert (changed.verb, changed.change) == (
        Verb.MODIFY,
        Change("user/x.md", "modify", sha(b""), sha(b"after")),
    )


def test_touched_scopes_are_those_of_the_opened_roots_whatever_the_paths_say(ground):
    user, project = ground.roots["user"], ground.roots["project"]
    lying = draft_of(project, "user/x.md", None)
    assert classify_touched_scopes([lying]) == ("project",)
    assert classify_touched_scopes([draft_of(user, "user/a.md", None), lying, lying]) == ("project", "user")


def test_an_empty_change_set_touches_nothing():
    assert classify_touched_scopes([]) == ()
