"""`Sandbox`: writes nothing before `commit`, then everything or nothing; reports its confinement."""

import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit.memories import CANARY, SCOPES, descriptors, make_roots, photograph, put, strict
from kit.policy import files
from muniment import Sandbox, errors
from muniment.cancelling import Cancel
from muniment.kernel.binding import bind_all
from muniment.kernel.cancel import Patience
from muniment.kernel.names import Enforcement
from muniment.names import ContextMode
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
def open_sandbox(request, roots):
    """Return a function that opens sandboxes over the roots, with or without a worker; close them after the
    test.
    """
    with ExitStack() as stack:

        def open_box(**options):
            policy = strict(require="none" if request.param else "partial", **options)
            return stack.enter_context(Sandbox(policy, roots, in_process=request.param))

        yield open_box


def write(box, path="user/a.md", content="x\n"):
    return box.call("write_file", {"path": path, "content": content})


# -- all or nothing


def test_commit_applies_proposed_changes_and_allows_more(open_sandbox, roots, tmp_path):
    put(roots["user"], "old.md", "old\n")
    box, before = open_sandbox(), photograph(tmp_path)
    write(box, "user/topic/new.md", "new\n")
    write(box, "user/old.md", "newer\n")
    assert photograph(tmp_path) == before
    proposed, kinds = box.changes(), [("user/old.md", "modify"), ("user/topic/new.md", "create")]
    assert [(change.path, change.kind) for change in proposed] == kinds
    done = box.commit()
    assert (list(done.changes), done.touched_scopes, box.changes()) == (proposed, ("user",), [])
    assert [(roots["user"] / name).read_text() for name in ("topic/new.md", "old.md")] == ["new\n", "newer\n"]
    assert [(roots[scope] / "MEMORY.md").exists() for scope in ("user", "project")] == [True, False]
    for path in set(roots["user"].rglob("*")) - {roots["user"] / "old.md"}:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    write(box, "user/b.md")
    assert [change.path for change in box.commit().changes] == ["user/b.md"]


@pytest.mark.parametrize("name", ["a.md", "A.md"])
def test_commit_fails_if_file_appeared_or_changed(open_sandbox, roots, tmp_path, name):
    existing, box = put(roots["user"], "a.md", "mine\n"), open_sandbox()
    for path in ("user/a.md", "user/b.md"):
        write(box, path)
    existing.unlink()
    put(roots["user"], name, "theirs\n")
    before = photograph(tmp_path)
    with pytest.raises((errors.StoreConflict, errors.RememberRefused)):
        box.commit()
    assert photograph(tmp_path) == before


# -- escapes


@pytest.mark.threat("T-RUN-08", control="escape_ends_sandbox")
@pytest.mark.threat("T-PATH-06", control="one_name")
@pytest.mark.parametrize("tool", ["write_file", "edit"])
def test_escape_by_writing_tool_makes_commit_raise(open_sandbox, roots, tmp_path, tool):
    (roots["user"] / "link.md").symlink_to(tmp_path / "outside" / "secret.md")
    (roots["user"] / "hard.md").hardlink_to(tmp_path / "outside" / "secret.md")
    more = {"content": "x"} if tool == "write_file" else {"old_string": "a", "new_string": "b"}
    before = photograph(tmp_path)
    for path in ("user/../x.md", "/etc/passwd", "user/link.md", "user/a\0.md", "user/hard.md"):
        box = open_sandbox()
        assert (write(box).verdict, box.call(tool, {"path": path, **more}).code) == ("allow", "path_escape")
        assert box.call(tool, {"path": "user/../second.md", **more}).code == "path_escape"
        for _ in range(2):
            with pytest.raises(errors.RememberPathEscape) as caught:
                box.commit()
            assert isinstance(caught.value, errors.PathEscape)
            assert (caught.value.tool, "second" in caught.value.requested) == (tool, False)
    assert photograph(tmp_path) == before


@pytest.mark.threat("T-PATH-03", control="resolvers")
def test_escape_by_reading_tool_does_not_block_commit(open_sandbox, roots, tmp_path):
    (roots["user"] / "link.md").symlink_to(tmp_path / "outside" / "secret.md")
    write(box := open_sandbox())
    for path in ("user/../x.md", "user/link.md"):
        for tool, more in (("read_file", {}), ("ls", {}), ("grep", {"pattern": CANARY})):
            outcome = box.call(tool, {"path": path, **more})
            assert (outcome.code, CANARY in outcome.text) == ("path_escape", False)
    assert box.commit().touched_scopes == ("user",)


def test_on_escape_refuse_denies_call_and_continues(open_sandbox):
    box = open_sandbox(on_escape="refuse")
    assert write(box, "user/../x.md").code == "path_escape"
    write(box)
    assert box.commit().touched_scopes == ("user",)


@pytest.mark.threat("T-PATH-05", control="root_identity")
def test_replaced_root_is_escape_for_calls_and_commit(open_sandbox, roots, tmp_path):
    box, lost = open_sandbox(on_escape="refuse"), open_sandbox()
    for tool in ([], {}, None, 7, "bash"):
        assert box.call(tool, {}).code == "unknown_tool"
    write(box)
    roots["user"].rename(tmp_path / "moved")
    for tool in ([], {}, None, 7, "bash"):
        assert box.call(tool, {}).code == "path_escape"
    assert lost.call("write_file", ["user/a.md"]).code == "path_escape"
    with pytest.raises(errors.RememberPathEscape) as caught:
        lost.commit()
    assert caught.value.requested == ""
    roots["user"].mkdir(mode=0o700)
    outcome = box.call("ls", {"path": ""})
    assert (outcome.code, outcome.via) == ("path_escape", "root_replaced")
    with pytest.raises(errors.RememberPathEscape):
        box.commit()
    assert list(roots["user"].iterdir()) == list((tmp_path / "moved").iterdir()) == []


# -- confinement


@pytest.mark.threat("T-RUN-11", control="required_enforcement")
@pytest.mark.parametrize("require", ["full", "partial"])
def test_policy_requiring_worker_rejects_in_process(roots, state, require, monkeypatch):
    monkeypatch.setattr(
        "muniment.sandbox.sandbox.bind_outside", lambda *_a, **_k: pytest.fail("a root was opened")
    )
    with pytest.raises(errors.ConfinementUnavailable) as caught:
        Sandbox(strict(require=require), roots, in_process=True)
    assert 'run it in a worker, or use a policy with require = "none"' in str(caught.value)
    with pytest.raises(errors.ConfinementUnavailable):
        Sandbox.for_run(strict(require=require), {}, state, in_process=True)


def test_policy_file_requires_partial_confinement_by_default(roots, tmp_path):
    own = files.write(
        tmp_path / "own.toml", body=files.SCOPES + files.allow("/user/**", verbs=["read", "create"])
    )
    bound = {"user": roots["user"]}
    for policy in (Path(own), own):
        with Sandbox(policy, bound) as box:
            assert box.enforcement.satisfies(Enforcement.PARTIAL)
            assert (box.call("ls", {"path": "user"}).code, write(box).verdict) == ("refused", "allow")
        with pytest.raises(errors.ConfinementUnavailable):
            Sandbox(policy, bound, in_process=True)


SPOILED = {
    "missing": Path.rmdir,
    "a file": lambda path: path.rmdir() or path.write_text(""),
    "open": lambda path: path.chmod(0o777),
    "writable": lambda path: path.chmod(0o720),
    "dangling": lambda path: path.rmdir() or path.symlink_to(path.with_name("nowhere")),
    "a loop": lambda path: path.rmdir() or path.symlink_to(path),
    "a link to an open one": lambda path: path.chmod(0o777) or path.symlink_to(path.rename(f"{path}-open")),
}


def test_unusable_root_raises_reason_and_starts_nothing(tmp_path):
    before = descriptors()
    for name, spoil in SPOILED.items():
        roots = make_roots(tmp_path / name)
        spoil(roots["user"])
        with pytest.raises(errors.ManagedMemoryUnavailable) as caught:
            Sandbox("strict", roots)
        assert (caught.value.what, bool(caught.value.reason)) == ("user", True), name
    assert descriptors() == before


def test_overlapping_roots_and_invalid_settings_are_rejected(roots, tmp_path):
    user = roots["user"]
    (inner := user / "inner").mkdir(mode=0o700)
    for bound, options, error in (
        *(({"user": user, "project": each}, {}, errors.ManagedMemoryUnavailable) for each in (user, inner)),
        *((roots, {"state": each}, errors.ManagedMemoryUnavailable) for each in (inner, tmp_path / "user")),
        *((each, {}, errors.InvalidScope) for each in ({}, None, {"team": "/nowhere"})),
        (roots, {"symlinks": "follow"}, errors.ConfigInvalid),
        (roots, {"policy": "no-such-policy"}, errors.PolicyInvalid),
    ):
        with pytest.raises(error):
            Sandbox(**{"policy": "strict", "roots": bound, **options})
    (link := tmp_path / "link").symlink_to(roots["user"])  # A link that the caller binds is accepted.
    with Sandbox("strict", {"user": link}) as box:
        write(box)
        box.commit()
    assert (roots["user"] / "a.md").exists()


# -- runs


@pytest.fixture
def bound(roots):
    with ExitStack() as stack:
        bound = bind_all(roots)
        for each in bound.values():
            stack.callback(each.close)
        yield bound
        assert all(bound[scope].root.fd >= 0 for scope in SCOPES)  # They still belong to the caller.


@pytest.mark.parametrize("in_process", MODES)
def test_clean_run_renames_file_if_name_is_taken(roots, bound, state, in_process):
    put(roots["user"], "a.md", "theirs\n")
    options = {"context": ContextMode.CLEAN, "in_process": in_process}
    with Sandbox.for_run(strict(require="none"), bound, state, **options) as box:
        assert write(box).text == "created user/a.md (2 bytes)"
        assert box.call("read_file", {"path": "user/a.md"}).text == "1\tx"
        assert [change.path for change in box.commit().changes] == ["user/a-2.md"]
    assert ((roots["user"] / "a.md").read_text(), len(commits(state))) == ("theirs\n", 1)


def test_cancelled_run_writes_nothing(bound, state, tmp_path):
    before = photograph(tmp_path)
    with Cancel() as cancel:
        soon = Patience(float("inf"), cancel)
        with Sandbox.for_run(strict(require="none"), bound, state, in_process=True, patience=soon) as box:
            write(box)
            cancel.set()
            with pytest.raises(errors.Cancelled):
                box.commit()
        refused = pytest.raises(errors.Cancelled)
        with Sandbox.for_run(strict(), bound, state, in_process=False, patience=soon) as box, refused:
            box.call("ls", {"path": ""})
    assert (photograph(tmp_path), commits(state)) == (before, ())
