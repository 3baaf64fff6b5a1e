"""A root that is moved away or replaced during a run: its replacement stays unchanged."""

import shutil

import pytest

from kit.memories import CANARY, make_roots, photograph, put, strict
from kit.raising import raised
from muniment.errors import ManagedMemoryUnavailable, RememberPathEscape, StoreConflict
from muniment.kernel import write as writing
from muniment.sandbox.fence.pool import Zygote
from muniment.sandbox.sandbox import Sandbox
from muniment.testing.race import exchange


def make_tree(base):
    roots = make_roots(base)
    put(roots["user"], "known.md", "what was there\n")
    put(roots["project"], "other.md", "of another scope\n")
    put(base / "outside", "known.md", f"{CANARY}\n")
    return roots


@pytest.fixture
def roots(tmp_path):
    return make_tree(tmp_path)


@pytest.fixture
def box(roots):
    with Sandbox(strict(on_escape="refuse"), roots) as box:
        yield box


def move_away(user):
    user.rename(user.with_name("moved"))


def replace_by_directory(user):
    move_away(user)
    user.mkdir(mode=0o700)
    put(user, "known.md", f"{CANARY}\n")


def replace_by_link(user, to="outside"):
    move_away(user)
    user.symlink_to(user.parent / to)


REPLACEMENTS = {
    "moved away": move_away,
    "a directory": replace_by_directory,
    "a link": replace_by_link,
    "a file": lambda user: (move_away(user), user.write_text(CANARY)),
    "removed": shutil.rmtree,
    "outside": lambda user: exchange(user, user.with_name("outside")),
    "another scope": lambda user: exchange(user, user.with_name("project")),
}
each_replacement = pytest.mark.parametrize("replace", REPLACEMENTS.values(), ids=REPLACEMENTS)

CALLS = [
    *(("read_file", {"path": "user/known.md"}), ("ls", {"path": "user"}), ("grep", {"pattern": "."})),
    ("edit", {"path": "user/known.md", "old_string": "was", "new_string": "is"}),
    ("write_file", {"path": "user/topic/new.md", "content": "new\n"}),
]


def write(box):
    return box.call("write_file", {"path": "user/topic/new.md", "content": "new\n"})


def check_commit_escapes(box):
    """Check that a commit fails because of the root, also at a second attempt."""
    for _ in range(2):
        assert raised(RememberPathEscape, box.commit).via == "root_replaced"
    return True


@each_replacement
def test_calls_and_commit_in_a_replaced_root_are_escapes(box, roots, tmp_path, replace):
    assert write(box).verdict == "allow"
    replace(roots["user"])
    before = photograph(tmp_path)
    for tool, arguments in CALLS:
        outcome = box.call(tool, arguments)
        assert (outcome.code, outcome.via) == ("path_escape", "root_replaced")
        assert CANARY not in outcome.text
    assert check_commit_escapes(box)
    assert photograph(tmp_path) == before


def test_root_replaced_before_a_call_or_commit_is_an_escape(tmp_path, subtests):
    policy = strict(on_escape="refuse", require="none")
    for name, replace in REPLACEMENTS.items():
        for is_first in (True, False):
            with subtests.test(name, is_first=is_first):
                base = tmp_path / f"{name} {is_first}"
                roots = make_tree(base)
                with Sandbox(policy, roots, in_process=not is_first) as box:
                    if not is_first:
                        assert (write(box).code, len(box.changes())) == (None, 1)
                    # A root that the call does not use also ends all calls.
                    replace(roots["project" if is_first and name != "another scope" else "user"])
                    before = photograph(base)
                    if is_first:
                        assert write(box).code == "path_escape"
                        assert box.commit().changes == ()
                    else:
                        assert check_commit_escapes(box)
                    assert photograph(base) == before


@pytest.mark.sweep(6)
@each_replacement
@pytest.mark.parametrize(("tool", "arguments"), CALLS, ids=[tool for tool, _ in CALLS])
def test_running_call_reads_the_bound_root(box, roots, tmp_path, replace, tool, arguments, monkeypatch):
    box.call("ls", {"path": ""})
    request = box._worker.request

    def replace_first(*arguments, **terms):
        monkeypatch.undo()
        replace(roots["user"])
        return request(*arguments, **terms)

    monkeypatch.setattr(box._worker, "request", replace_first)
    outcome = box.call(tool, arguments)
    # The handle of the worker leads to the bound directory at any path.
    is_missing = replace is shutil.rmtree and tool in {"read_file", "edit"}
    assert outcome.code == ("not_found" if is_missing else None)
    assert CANARY not in outcome.text
    before = photograph(tmp_path)
    if tool in {"write_file", "edit"} and not is_missing:
        assert check_commit_escapes(box)
    else:
        assert box.commit().changes == ()
    assert photograph(tmp_path) == before


@each_replacement
def test_running_commit_writes_to_the_bound_root_or_fails(box, roots, tmp_path, replace, monkeypatch):
    write(box)
    bound = roots["user"].stat().st_ino
    land = writing.land
    before = {}

    def photograph_rest():
        return photograph(*(path for path in tmp_path.iterdir() if path.lstat().st_ino != bound))

    def replace_first(*args, **terms):
        monkeypatch.undo()  # A rollback also uses `land`.
        replace(roots["user"])
        before.update(photograph_rest())
        return land(*args, **terms)

    monkeypatch.setattr(writing, "land", replace_first)
    if replace is shutil.rmtree:
        raised(ManagedMemoryUnavailable, box.commit, match="removed meanwhile")
    else:
        box.commit()
        (written_root,) = [path for path in tmp_path.iterdir() if path.lstat().st_ino == bound]
        assert (written_root / "topic" / "new.md").read_text() == "new\n"
    assert photograph_rest() == before


def test_bound_root_reached_through_a_link_is_accepted(box, roots):
    write(box)
    move_away(roots["user"])
    roots["user"].symlink_to(roots["user"].with_name("moved"))
    assert box.call("read_file", {"path": "user/known.md"}).text == "1\twhat was there"
    assert [change.path for change in box.commit().changes] == ["user/topic/new.md"]
    assert (roots["user"].with_name("moved") / "topic" / "new.md").read_text() == "new\n"


# -- a worker receives the roots that its policy lets it read


def test_worker_receives_only_readable_roots(roots, monkeypatch):
    handed, spawn = [], Zygote.spawn

    def record_spawn(zygote, roots, patience):
        handed.append(roots)
        return spawn(zygote, roots, patience)

    monkeypatch.setattr(Zygote, "spawn", record_spawn)
    for left in ("list", "read", "modify", None):
        denied = [verb for verb in ("list", "read", "modify") if verb != left]
        with Sandbox(strict(deny=[(denied, ["/project/"])]), roots) as box:
            box.call("ls", {"path": ""})
            expected = {"user", "project"} if left else {"user"}
            assert handed.pop() == {scope: box._roots[scope].root.fd for scope in expected}, denied


@pytest.mark.parametrize("in_process", [False, True], ids=["worker", "in process"])
def test_create_only_scope_looks_empty_until_the_commit(roots, tmp_path, in_process):
    put(roots["project"], "taken.md", f"{CANARY}\n")
    policy = strict(require="none", deny=[(["list", "read", "modify"], ["/project/"])])
    with Sandbox(policy, roots, in_process=in_process) as box:
        assert box.call("ls", {"path": "project"}).code == "refused"
        assert box.call("read_file", {"path": "project/taken.md"}).code == "refused"
        assert box.call("grep", {"pattern": CANARY, "path": ""}).text == "no matches"
        answer = box.call("write_file", {"path": "project/taken.md", "content": "mine\n"}).text
        assert answer == "created project/taken.md (5 bytes)"
        box.call("write_file", {"path": "project/free.md", "content": "mine\n"})
        before = photograph(tmp_path)
        caught = raised(StoreConflict, box.commit)
        assert CANARY not in str(caught)
        assert photograph(tmp_path) == before
    with Sandbox(policy, roots, in_process=in_process) as box:
        box.call("write_file", {"path": "project/free.md", "content": "mine\n"})
        assert [change.path for change in box.commit().changes] == ["project/free.md"]
