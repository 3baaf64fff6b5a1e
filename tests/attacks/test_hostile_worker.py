"""A worker that was taken over, against the whole broker: no lie lands, and nobody waits for it.

Real processes: the zygote forks workers that run `services/lying_service.py`. Which lie one tells is the
name of the policy that it was given.
"""

from dataclasses import replace

import pytest

from kit.memories import CANARY, make_roots, photograph, put, strict
from kit.operations.places import opened, remembering
from kit.sandbox.probe import own_zygote
from kit.sandbox.services import lying_service
from muniment.agent.model import Reply, ToolCall
from muniment.errors import MunimentError
from muniment.kernel.names import Trust
from muniment.sandbox.sandbox import Sandbox
from muniment.testing.minds import ScriptedModel, call, calls, say

ESCAPES = ["dotdot", "link", "linked-directory", "hard-link", "good-then-escape", "claims-escape"]
REFUSED = ["other-scope", "not-canonical", "index", "no-markdown", "twice", "terminal", "over-quota"]
CONFLICTS = ["alias", "wrong-base", "base-of-nothing", "denies-existing", "wrong-claim", "claims-absence"]
ENDED = [
    *("delete", "mode", "path-is-no-text", "base-is-no-digest", "surrogate", "over-long-path"),
    *("thousand-files", "over-budget", "many-claims", "endless", "bytes-in-path", "dies-at-the-end"),
    *("wrong-digest", "wrong-n", "unknown-verdict", "more-than-asked", "huge-text", "giant-frame"),
    *("exits", "dies", "answers-twice"),
]
LATE = ["silent", "silent-at-the-end"]
OWN_WORDS = ["own-words", "own-words-for-an-entry"]
"""These may land, or wait: `test_words_of_a_worker_that_lies_are_never_the_owners`."""
CODES = {
    "file-as-directory": {"remember_refused", "store_conflict"},
    **{lie: {"remember_path_escape"} for lie in [*ESCAPES, "claims-link"]},
    **{lie: {"remember_refused"} for lie in [*REFUSED, "project-only"]},
    **{lie: {"store_conflict"} for lie in CONFLICTS},
    **{lie: {"remember_failed"} for lie in ENDED},
    **{lie: {"remember_timeout"} for lie in LATE},
}


zygote = own_zygote("lying_service:serve")


@pytest.fixture
def liars(zygote, monkeypatch):
    """All workers lie as the name of their policy says, until this is undone."""
    monkeypatch.setattr("muniment.sandbox.fence.pool.shared_zygote", lambda: zygote)
    return monkeypatch


@pytest.fixture
def roots(tmp_path):
    roots = make_roots(tmp_path)
    outside = tmp_path / "outside"
    put(roots["user"], "known.md", "text\n")
    (roots["user"] / "link.md").symlink_to(outside / "secret.md")
    (roots["user"] / "linked").symlink_to(outside)
    (roots["user"] / "hard.md").hardlink_to(outside / "secret.md")
    return roots


@pytest.fixture
def place(roots):
    with opened(roots, in_process=False, on_model_failure="rules") as place:
        yield lambda policy, **terms: replace(place, policy=policy, **terms)


def agreeable():
    """A model that lets the worker do the work."""
    return ScriptedModel([calls(call("ls", path="user")), say("Saved.")] * 2)


@pytest.mark.sweep(5)
@pytest.mark.threat("T-RUN-09", control="judged_changes")
@pytest.mark.parametrize("lie", CODES)
def test_a_lie_lands_nothing_and_the_next_honest_run_works(lie, liars, place, tmp_path):
    assert set(lying_service.CHANGE_SETS) <= {*CODES, *OWN_WORDS}
    policy = strict(name=lie, limits={"seconds": 1 if lie in LATE else 30})
    before = photograph(tmp_path)
    scope = "user" if lie == "project-only" else None
    result = remembering(place(policy), "a fact", agreeable(), scope=scope)
    liars.undo()
    assert photograph(tmp_path) == before
    assert result.error is not None
    assert result.error.code in CODES[lie]
    assert (result.status, result.files_touched, result.touched_scopes) == ("failed", (), ())
    told = str(result.as_json())
    assert CANARY not in told
    assert str(tmp_path) not in told
    assert remembering(place(strict()), "The user prefers dark mode").status == "completed"


@pytest.mark.threat("T-MEM-15", control="own_words")
@pytest.mark.usefixtures("liars")
@pytest.mark.parametrize("lie", OWN_WORDS)
def test_words_of_a_worker_that_lies_are_never_the_owners(lie, place, roots):
    known = (roots["user"] / "known.md").read_bytes()
    result = remembering(place(strict(name=lie)), "a fact", agreeable())
    assert (roots["user"] / "known.md").read_bytes() == known
    if result.error is None:
        assert result.trust is Trust.AGENT
    else:
        assert result.error.code in {"pending_review", "remember_failed"}


@pytest.mark.usefixtures("liars")
@pytest.mark.parametrize("lie", ["escape-by-hand", "escape-without-via"])
def test_an_escape_that_only_the_worker_saw_still_ends_a_writing_run(place, lie):
    for tool, code in (("write_file", "remember_path_escape"), ("ls", "remember_no_update")):
        model = ScriptedModel([calls(call(tool, path="user/a.md", content="x")), say("Saved.")])
        result = remembering(place(strict(name=lie), on_model_failure="fail"), "a fact", model)
        assert result.error is not None
        assert result.error.code == code


@pytest.mark.usefixtures("liars")
def test_a_worker_that_allows_what_is_no_path_is_lost(place):
    for arguments in ({}, {"path": None}, {"path": 7}, {"path": "user/../x"}, {"path": "team/a"}):
        model = ScriptedModel([Reply(calls=(ToolCall("1", "read_file", arguments),)), say("Saved.")])
        result = remembering(place(strict(name="yes-man")), "a fact", model)
        assert result.error is not None
        assert result.error.code == "remember_failed", arguments


def test_a_silent_worker_is_ended_at_the_deadline_of_a_call(liars, roots):
    liars.setattr("muniment.sandbox.sandbox.WAIT_SECONDS", 0.2)
    with Sandbox(strict(name="silent"), roots) as box, pytest.raises(MunimentError) as caught:
        box.call("ls", {"path": ""})
    assert caught.value.code == "deadline"
