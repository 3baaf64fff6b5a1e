"""A compromised worker against the whole broker: no lie is committed, and no caller waits for it.

Real processes: the zygote forks workers that run `services/lying_service.py`. The name of the policy
selects the lie.
"""

from dataclasses import replace

import pytest

from kit.memories import CANARY, make_roots, make_strict_policy, take_snapshot, write_file
from kit.operations.contexts import open_context, run_remember
from kit.sandbox.probe import make_zygote_fixture
from kit.sandbox.services import lying_service
from muniment.agent.model import Reply, ToolCall
from muniment.errors import MunimentError
from muniment.kernel.names import Trust
from muniment.sandbox.sandbox import Sandbox
from muniment.testing.scripted_models import ScriptedModel, make_call, reply_with_calls, reply_with_text

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
WORD_LIES = ["own-words", "own-words-for-an-entry"]
"""These lies may be committed or wait for review: `test_words_of_a_lying_worker_have_no_owner_trust`."""
CODES = {
    "file-as-directory": {"remember_refused", "store_conflict"},
    **{lie: {"remember_path_escape"} for lie in [*ESCAPES, "claims-link"]},
    **{lie: {"remember_refused"} for lie in [*REFUSED, "project-only"]},
    **{lie: {"store_conflict"} for lie in CONFLICTS},
    **{lie: {"remember_failed"} for lie in ENDED},
    **{lie: {"remember_timeout"} for lie in LATE},
}


zygote = make_zygote_fixture("lying_service:serve")


@pytest.fixture
def lying_workers(zygote, monkeypatch):
    """All workers lie as the name of their policy selects, until this is undone."""
    monkeypatch.setattr("muniment.sandbox.fence.pool.get_shared_zygote", lambda: zygote)
    return monkeypatch


@pytest.fixture
def roots(tmp_path):
    roots = make_roots(tmp_path)
    outside = tmp_path / "outside"
    write_file(roots["user"], "known.md", "text\n")
    (roots["user"] / "link.md").symlink_to(outside / "secret.md")
    (roots["user"] / "linked").symlink_to(outside)
    (roots["user"] / "hard.md").hardlink_to(outside / "secret.md")
    return roots


@pytest.fixture
def make_context(roots):
    with open_context(roots, in_process=False, on_model_failure="rules") as context:
        yield lambda policy, **terms: replace(context, policy=policy, **terms)


def make_agreeable_model():
    """Return a model that leaves the work to the worker."""
    return ScriptedModel([reply_with_calls(make_call("ls", path="user")), reply_with_text("Saved.")] * 2)


@pytest.mark.sweep(5)
@pytest.mark.threat("T-RUN-09", control="judged_changes")
@pytest.mark.parametrize("lie", CODES)
def test_lie_of_a_worker_commits_nothing(lie, lying_workers, make_context, tmp_path):
    assert set(lying_service.CHANGE_SETS) <= {*CODES, *WORD_LIES}
    policy = make_strict_policy(name=lie, limits={"seconds": 1 if lie in LATE else 30})
    before = take_snapshot(tmp_path)
    scope = "user" if lie == "project-only" else None
    result = run_remember(make_context(policy), "a fact", make_agreeable_model(), scope=scope)
    lying_workers.undo()
    assert take_snapshot(tmp_path) == before
    assert result.error is not None
    assert result.error.code in CODES[lie]
    assert (result.status, result.files_touched, result.touched_scopes) == ("failed", (), ())
    answer = str(result.as_json())
    assert CANARY not in answer
    assert str(tmp_path) not in answer
    assert (
        run_remember(make_context(make_strict_policy()), "The user prefers dark mode").status == "completed"
    )


@pytest.mark.threat("T-MEM-15", control="own_words")
@pytest.mark.usefixtures("lying_workers")
@pytest.mark.parametrize("lie", WORD_LIES)
def test_words_of_a_lying_worker_have_no_owner_trust(lie, make_context, roots):
    known = (roots["user"] / "known.md").read_bytes()
    result = run_remember(make_context(make_strict_policy(name=lie)), "a fact", make_agreeable_model())
    assert (roots["user"] / "known.md").read_bytes() == known
    if result.error is None:
        assert result.trust is Trust.AGENT
    else:
        assert result.error.code in {"pending_review", "remember_failed"}


@pytest.mark.usefixtures("lying_workers")
@pytest.mark.parametrize("lie", ["escape-by-hand", "escape-without-via"])
def test_escape_reported_by_a_worker_ends_a_writing_run(make_context, lie):
    for tool, code in (("write_file", "remember_path_escape"), ("ls", "remember_no_update")):
        model = ScriptedModel(
            [reply_with_calls(make_call(tool, path="user/a.md", content="x")), reply_with_text("Saved.")]
        )
        result = run_remember(
            make_context(make_strict_policy(name=lie), on_model_failure="fail"), "a fact", model
        )
        assert result.error is not None
        assert result.error.code == code


@pytest.mark.usefixtures("lying_workers")
def test_worker_that_allows_an_invalid_path_is_lost(make_context):
    for arguments in ({}, {"path": None}, {"path": 7}, {"path": "user/../x"}, {"path": "team/a"}):
        model = ScriptedModel(
            [Reply(calls=(ToolCall("1", "read_file", arguments),)), reply_with_text("Saved.")]
        )
        result = run_remember(make_context(make_strict_policy(name="yes-man")), "a fact", model)
        assert result.error is not None
        assert result.error.code == "remember_failed", arguments


def test_silent_worker_is_killed_at_the_deadline(lying_workers, roots):
    lying_workers.setattr("muniment.sandbox.sandbox.WAIT_SECONDS", 0.2)
    with Sandbox(make_strict_policy(name="silent"), roots) as box, pytest.raises(MunimentError) as caught:
        box.call("ls", {"path": ""})
    assert caught.value.code == "deadline"
