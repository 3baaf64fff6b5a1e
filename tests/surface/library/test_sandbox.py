"""`Sandbox`: nothing before `commit`, then everything or nothing; and what holds it is said."""

from __future__ import annotations

import stat

import pytest

from kit.memories import CANARY, SCOPES, descriptors, make_roots, photograph, put, strict
from muniment import Sandbox
from muniment.confine.binding import bind_all
from muniment.confine.cancel import Cancel, Patience
from muniment.errors import (
    Cancelled,
    ConfigInvalid,
    ConfinementUnavailable,
    InvalidScope,
    ManagedMemoryUnavailable,
    MunimentError,
    PathEscape,
    PolicyInvalid,
    RememberPathEscape,
    RememberRefused,
    StoreConflict,
)
from muniment.names import ContextMode, Enforcement
from muniment.sandbox import RunTerms
from muniment.store.ledger import commits
from muniment.store.state import State

MODES = [False, True]


@pytest.fixture
def roots(tmp_path):
    return make_roots(tmp_path)


@pytest.fixture
def state():
    with State(None) as opened:
        yield opened


@pytest.fixture(params=MODES, ids=["worker", "in process"])
def opened(request, roots):
    """Opens sandboxes over the roots, with and without a worker, and closes them."""
    boxes = []

    def open_box(**terms):
        policy = strict(require="none" if request.param else "partial", **terms)
        boxes.append(Sandbox(policy, roots, in_process=request.param))
        return boxes[-1]

    yield open_box
    for box in boxes:
        box.close()


def write(box, path="user/a.md", content="x\n"):
    return box.call("write_file", {"path": path, "content": content})


def test_what_was_proposed_lands_at_commit_as_it_was_proposed(opened, roots, tmp_path):
    put(roots["user"], "old.md", "old\n")
    box, before = opened(), photograph(tmp_path)
    write(box, "user/topic/new.md", "new\n")
    write(box, "user/old.md", "newer\n")
    assert photograph(tmp_path) == before
    proposed = box.changes()
    assert [(change.path, change.kind) for change in proposed] == [
        ("user/old.md", "modify"),
        ("user/topic/new.md", "create"),
    ]
    done = box.commit()
    assert list(done.changes) == proposed
    assert done.touched_scopes == ("user",)
    assert (roots["user"] / "topic" / "new.md").read_text() == "new\n"
    assert (roots["user"] / "old.md").read_text() == "newer\n"
    assert (roots["user"] / "MEMORY.md").exists()
    assert not (roots["project"] / "MEMORY.md").exists()
    for path in roots["user"].rglob("*"):
        if path.name != "old.md":
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_after_a_commit_the_overlay_is_empty_and_can_be_filled_again(opened):
    box = opened()
    write(box)
    box.commit()
    assert box.changes() == []
    write(box, "user/b.md")
    assert [change.path for change in box.commit().changes] == ["user/b.md"]


def test_a_file_that_changed_meanwhile_is_a_conflict_and_nothing_lands(opened, roots, tmp_path):
    put(roots["user"], "a.md", "mine\n")
    box = opened()
    write(box)
    write(box, "user/b.md")
    put(roots["user"], "a.md", "theirs\n")
    before = photograph(tmp_path)
    with pytest.raises(StoreConflict):
        box.commit()
    assert photograph(tmp_path) == before


@pytest.mark.threat("T-RUN-08", control="escape_ends_sandbox")
@pytest.mark.threat("T-PATH-06", control="one_name")
@pytest.mark.parametrize(
    "path", ["user/../x.md", "/etc/passwd", "user/link.md", "user/a\0.md", "user/hard.md"]
)
@pytest.mark.parametrize("tool", ["write_file", "edit"])
def test_the_first_escape_by_a_writing_tool_makes_commit_raise(opened, roots, tmp_path, path, tool):
    (roots["user"] / "link.md").symlink_to(tmp_path / "outside" / "secret.md")
    (roots["user"] / "hard.md").hardlink_to(tmp_path / "outside" / "secret.md")
    box = opened()
    assert write(box).verdict == "allow"
    before = photograph(tmp_path)
    more = {"content": "x"} if tool == "write_file" else {"old_string": "a", "new_string": "b"}
    assert box.call(tool, {"path": path, **more}).code == "path_escape"
    assert box.call(tool, {"path": "user/../second.md", **more}).code == "path_escape"
    for _ in range(2):
        with pytest.raises(RememberPathEscape) as caught:
            box.commit()
        assert isinstance(caught.value, PathEscape)
        assert caught.value.tool == tool
        assert "second" not in caught.value.requested
    assert photograph(tmp_path) == before


@pytest.mark.threat("T-PATH-03", control="resolvers")
@pytest.mark.parametrize("path", ["user/../x.md", "user/link.md"])
def test_an_escape_by_a_reading_tool_ends_nothing(opened, roots, tmp_path, path):
    (roots["user"] / "link.md").symlink_to(tmp_path / "outside" / "secret.md")
    box = opened()
    write(box)
    for tool, more in (("read_file", {}), ("ls", {}), ("grep", {"pattern": CANARY})):
        outcome = box.call(tool, {"path": path, **more})
        assert outcome.code == "path_escape"
        assert CANARY not in outcome.text
    assert box.commit().touched_scopes == ("user",)


def test_under_refuse_the_model_is_told_and_may_go_on(opened):
    box = opened(on_escape="refuse")
    assert write(box, "user/../x.md").code == "path_escape"
    write(box)
    assert box.commit().touched_scopes == ("user",)


@pytest.mark.parametrize("tool", [[], {}, None, 7, "bash"])
def test_what_is_no_tool_is_an_error_also_when_the_root_is_gone(opened, roots, tool):
    box = opened()
    assert box.call(tool, {}).code == "unknown_tool"
    roots["user"].rename(roots["user"].with_name("moved"))
    assert box.call(tool, {}).code == "path_escape"


@pytest.mark.threat("T-PATH-05", control="root_identity")
def test_a_root_that_was_replaced_is_an_escape_for_every_call_and_commit(opened, roots, tmp_path):
    box = opened(on_escape="refuse")
    write(box)
    roots["user"].rename(tmp_path / "moved")
    roots["user"].mkdir(mode=0o700)
    outcome = box.call("ls", {"path": ""})
    assert (outcome.code, outcome.via) == ("path_escape", "root_replaced")
    with pytest.raises(RememberPathEscape):
        box.commit()
    assert list(roots["user"].iterdir()) == []
    assert list((tmp_path / "moved").iterdir()) == []


def test_a_call_with_arguments_that_are_no_object_after_a_lost_root_still_ends_the_run(
    opened, roots, tmp_path
):
    box = opened()
    roots["user"].rename(tmp_path / "moved")
    assert box.call("write_file", ["user/a.md"]).code == "path_escape"
    with pytest.raises(RememberPathEscape) as caught:
        box.commit()
    assert caught.value.requested == ""


@pytest.mark.threat("T-RUN-11", control="required_enforcement")
@pytest.mark.parametrize("require", ["full", "partial"])
def test_a_policy_that_requires_a_worker_runs_nothing_in_process(roots, require, monkeypatch):
    monkeypatch.setattr("muniment.sandbox.bind_all", lambda *_a, **_k: pytest.fail("a root was opened"))
    with pytest.raises(ConfinementUnavailable) as caught:
        Sandbox(strict(require=require), roots, in_process=True)
    assert 'run it in a worker, or use a policy that says require = "none"' in str(caught.value)


def test_a_policy_file_that_says_nothing_requires_partial(roots, tmp_path):
    policy = tmp_path / "plain.toml"
    policy.write_text('schema = "muniment-policy/1"\nname = "plain"\n[scopes]\nuser = {}\nproject = {}\n')
    with Sandbox(str(policy), roots) as box:
        assert box.enforcement.satisfies(Enforcement.PARTIAL)
        assert box.call("ls", {"path": "user"}).code == "refused"
    with pytest.raises(ConfinementUnavailable):
        Sandbox(str(policy), roots, in_process=True)


def make_missing(path):
    path.rmdir()


def make_file(path):
    path.rmdir()
    path.write_text("")


def make_open(path):
    path.chmod(0o777)


def make_group_writable(path):
    path.chmod(0o720)


def make_dangling(path):
    path.rmdir()
    path.symlink_to(path.with_name("nowhere"))


def make_loop(path):
    path.rmdir()
    path.symlink_to(path)


def make_link_to_open(path):
    path.rmdir()
    target = path.with_name("target")
    target.mkdir()
    target.chmod(0o777)
    path.symlink_to(target)


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "spoil",
    [make_missing, make_file, make_open, make_group_writable, make_dangling, make_loop, make_link_to_open],
)
def test_a_root_that_cannot_be_used_says_why_and_nothing_starts(roots, spoil):
    spoil(roots["user"])
    before = descriptors()
    with pytest.raises(ManagedMemoryUnavailable) as caught:
        Sandbox("strict", roots)
    assert caught.value.what == "user"
    assert caught.value.reason
    assert descriptors() == before


def test_roots_lie_apart_from_each_other_and_from_the_state(roots, tmp_path):
    with pytest.raises(ManagedMemoryUnavailable):
        Sandbox("strict", {"user": roots["user"], "project": roots["user"]})
    (roots["user"] / "inner").mkdir(mode=0o700)
    with pytest.raises(ManagedMemoryUnavailable):
        Sandbox("strict", {"user": roots["user"], "project": roots["user"] / "inner"})
    with pytest.raises(ManagedMemoryUnavailable):
        Sandbox("strict", roots, state=roots["user"] / "inner")
    with pytest.raises(ManagedMemoryUnavailable):
        Sandbox("strict", roots, state=tmp_path.parent / tmp_path.name / "user")


@pytest.mark.parametrize("bound", [{}, None, {"team": "/nowhere"}])
def test_roots_that_the_policy_does_not_know_and_none_at_all_are_refused(bound):
    with pytest.raises(InvalidScope):
        Sandbox("strict", bound)


def test_other_bad_settings_are_refused(roots):
    with pytest.raises(ConfigInvalid):
        Sandbox("strict", roots, symlinks="follow")
    with pytest.raises(PolicyInvalid):
        Sandbox("no-such-policy", roots)


def test_a_link_that_is_bound_was_meant(roots, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(roots["user"])
    with Sandbox("strict", {"user": link}) as box:
        write(box)
        box.commit()
    assert (roots["user"] / "a.md").exists()


@pytest.mark.parametrize("in_process", MODES)
def test_a_clean_run_settles_a_taken_name_without_telling(roots, state, in_process):
    put(roots["user"], "a.md", "theirs\n")
    bound = bind_all(roots)
    terms = RunTerms(ContextMode.CLEAN, must_read=True, patience=Patience(float("inf")))
    policy = strict(require="none")
    with Sandbox.for_run(policy, bound, state, terms, in_process=in_process) as box:
        assert write(box).text == "created user/a.md (2 bytes)"
        assert box.call("read_file", {"path": "user/a.md"}).text == "1\tx"
        assert [change.path for change in box.commit().changes] == ["user/a-2.md"]
    assert (roots["user"] / "a.md").read_text() == "theirs\n"
    assert [bound[scope].root.fd >= 0 for scope in SCOPES] == [True, True]
    assert len(commits(state)) == 1
    for each in bound.values():
        each.close()


def test_a_run_ends_at_its_patience_before_anything_is_written(roots, state, tmp_path):
    bound = bind_all(roots)
    before = photograph(tmp_path)
    with Cancel() as cancel:
        terms = RunTerms(ContextMode.WORKSPACE, must_read=True, patience=Patience(float("inf"), cancel))
        with Sandbox.for_run(strict(require="none"), bound, state, terms, in_process=True) as box:
            write(box)
            cancel.set()
            with pytest.raises(Cancelled):
                box.commit()
        refused = pytest.raises(Cancelled)
        with Sandbox.for_run(strict(), bound, state, terms, in_process=False) as box, refused:
            box.call("ls", {"path": ""})
    assert photograph(tmp_path) == before
    assert commits(state) == ()
    for each in bound.values():
        each.close()


def test_a_run_that_is_held_too_little_does_not_begin(state):
    terms = RunTerms(ContextMode.WORKSPACE, must_read=True, patience=Patience(float("inf")))
    with pytest.raises(ConfinementUnavailable):
        Sandbox.for_run(strict(), {}, state, terms, in_process=True)


def test_what_the_judge_does_not_allow_is_refused_with_its_reason(roots):
    with Sandbox(strict(require="none"), roots, in_process=True) as box:
        write(box)
        (roots["user"] / "A.md").write_text("came first")
        with pytest.raises(MunimentError) as caught:
            box.commit()
        assert isinstance(caught.value, StoreConflict | RememberRefused)
    assert not (roots["user"] / "a.md").exists()


def test_a_policy_may_be_named_by_the_path_of_its_file(roots, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(
        'schema = "muniment-policy/1"\nname = "own"\n[scopes]\nuser = { trust = "owner" }\n'
        '[[allow]]\nid = "all"\nverbs = ["list", "read", "create"]\npaths = ["/user/**/*.md"]\n'
    )
    for policy in (own, str(own)):
        with Sandbox(policy, {"user": roots["user"]}) as box:
            assert box.call("write_file", {"path": "user/a.md", "content": "x\n"}).verdict == "allow"
