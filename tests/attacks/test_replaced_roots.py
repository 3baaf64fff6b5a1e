"""A root that is taken away or replaced during a run: whatever stands there now stays as it is."""

import shutil

import pytest

from kit.memories import CANARY, make_roots, photograph, put, strict
from kit.raising import raised
from muniment.errors import ManagedMemoryUnavailable, RememberPathEscape, StoreConflict
from muniment.kernel import write as writing
from muniment.sandbox.fence.pool import Zygote
from muniment.sandbox.sandbox import Sandbox
from muniment.testing.race import exchange


def made_in(base):
    roots = make_roots(base)
    put(roots["user"], "known.md", "what was there\n")
    put(roots["project"], "other.md", "of another scope\n")
    put(base / "outside", "known.md", f"{CANARY}\n")
    return roots


@pytest.fixture
def roots(tmp_path):
    return made_in(tmp_path)


@pytest.fixture
def box(roots):
    with Sandbox(strict(on_escape="refuse"), roots) as box:
        yield box


def take_away(user):
    user.rename(user.with_name("moved"))


def directory(user):
    take_away(user)
    user.mkdir(mode=0o700)
    put(user, "known.md", f"{CANARY}\n")


def link(user, to="outside"):
    take_away(user)
    user.symlink_to(user.parent / to)


REPLACEMENTS = {
    "taken away": take_away,
    "a directory": directory,
    "a link": link,
    "a file": lambda user: (take_away(user), user.write_text(CANARY)),
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


def escapes(box):
    """Whether a commit ends for the root, however often it is tried."""
    for _ in range(2):
        assert raised(RememberPathEscape, box.commit).via == "root_replaced"
    return True


@each_replacement
def test_every_call_after_a_root_was_replaced_is_an_escape_and_so_is_a_commit(box, roots, tmp_path, replace):
    assert write(box).verdict == "allow"
    replace(roots["user"])
    before = photograph(tmp_path)
    for tool, arguments in CALLS:
        outcome = box.call(tool, arguments)
        assert (outcome.code, outcome.via) == ("path_escape", "root_replaced")
        assert CANARY not in outcome.text
    assert escapes(box)
    assert photograph(tmp_path) == before


def test_a_root_replaced_before_the_first_call_or_the_commit_is_an_escape(tmp_path, subtests):
    policy = strict(on_escape="refuse", require="none")
    for name, replace in REPLACEMENTS.items():
        for is_first in (True, False):
            with subtests.test(name, is_first=is_first):
                base = tmp_path / f"{name} {is_first}"
                roots = made_in(base)
                with Sandbox(policy, roots, in_process=not is_first) as box:
                    if not is_first:
                        assert (write(box).code, len(box.changes())) == (None, 1)
                    # Also one in which nothing is to be done ends all calls.
                    replace(roots["project" if is_first and name != "another scope" else "user"])
                    before = photograph(base)
                    if is_first:
                        assert write(box).code == "path_escape"
                        assert box.commit().changes == ()
                    else:
                        assert escapes(box)
                    assert photograph(base) == before


@pytest.mark.sweep(6)
@each_replacement
@pytest.mark.parametrize(("tool", "arguments"), CALLS, ids=[tool for tool, _ in CALLS])
def test_a_call_under_way_sees_what_was_bound(box, roots, tmp_path, replace, tool, arguments, monkeypatch):
    box.call("ls", {"path": ""})
    request = box._worker.request

    def replaced_first(*arguments, **terms):
        monkeypatch.undo()
        replace(roots["user"])
        return request(*arguments, **terms)

    monkeypatch.setattr(box._worker, "request", replaced_first)
    outcome = box.call(tool, arguments)
    # The handle that the worker holds leads to the directory that was bound, wherever that stands by now.
    gone = replace is shutil.rmtree and tool in {"read_file", "edit"}
    assert outcome.code == ("not_found" if gone else None)
    assert CANARY not in outcome.text
    before = photograph(tmp_path)
    if tool in {"write_file", "edit"} and not gone:
        assert escapes(box)
    else:
        assert box.commit().changes == ()
    assert photograph(tmp_path) == before


@each_replacement
def test_a_write_that_has_begun_goes_to_what_was_bound_or_nowhere(box, roots, tmp_path, replace, monkeypatch):
    write(box)
    bound = roots["user"].stat().st_ino
    land = writing.land
    before = {}

    def everything_else():
        return photograph(*(path for path in tmp_path.iterdir() if path.lstat().st_ino != bound))

    def replaced_first(*args, **terms):
        monkeypatch.undo()  # What is rolled back is landed too.
        replace(roots["user"])
        before.update(everything_else())
        return land(*args, **terms)

    monkeypatch.setattr(writing, "land", replaced_first)
    if replace is shutil.rmtree:
        raised(ManagedMemoryUnavailable, box.commit, match="removed meanwhile")
    else:
        box.commit()
        (landed,) = [path for path in tmp_path.iterdir() if path.lstat().st_ino == bound]
        assert (landed / "topic" / "new.md").read_text() == "new\n"
    assert everything_else() == before


def test_a_root_that_is_still_found_behind_a_link_is_still_the_one_that_was_bound(box, roots):
    write(box)
    take_away(roots["user"])
    roots["user"].symlink_to(roots["user"].with_name("moved"))
    assert box.call("read_file", {"path": "user/known.md"}).text == "1\twhat was there"
    assert [change.path for change in box.commit().changes] == ["user/topic/new.md"]
    assert (roots["user"].with_name("moved") / "topic" / "new.md").read_text() == "new\n"


# -- which roots a worker holds: those in which its policy lets it look --------------------------------


def test_a_worker_holds_a_root_only_if_it_may_look_into_it(roots, monkeypatch):
    handed, spawn = [], Zygote.spawn

    def noting(zygote, roots, patience):
        handed.append(roots)
        return spawn(zygote, roots, patience)

    monkeypatch.setattr(Zygote, "spawn", noting)
    for left in ("list", "read", "modify", None):
        denied = [verb for verb in ("list", "read", "modify") if verb != left]
        with Sandbox(strict(deny=[(denied, ["/project/"])]), roots) as box:
            box.call("ls", {"path": ""})
            expected = {"user", "project"} if left else {"user"}
            assert handed.pop() == {scope: box._roots[scope].root.fd for scope in expected}, denied


@pytest.mark.parametrize("in_process", [False, True], ids=["worker", "in process"])
def test_a_scope_that_may_only_be_added_to_looks_empty_until_the_commit(roots, tmp_path, in_process):
    put(roots["project"], "taken.md", f"{CANARY}\n")
    policy = strict(require="none", deny=[(["list", "read", "modify"], ["/project/"])])
    with Sandbox(policy, roots, in_process=in_process) as box:
        assert box.call("ls", {"path": "project"}).code == "refused"
        assert box.call("read_file", {"path": "project/taken.md"}).code == "refused"
        assert box.call("grep", {"pattern": CANARY, "path": ""}).text == "no matches"
        told = box.call("write_file", {"path": "project/taken.md", "content": "mine\n"}).text
        assert told == "created project/taken.md (5 bytes)"
        box.call("write_file", {"path": "project/free.md", "content": "mine\n"})
        before = photograph(tmp_path)
        caught = raised(StoreConflict, box.commit)
        assert CANARY not in str(caught)
        assert photograph(tmp_path) == before
    with Sandbox(policy, roots, in_process=in_process) as box:
        box.call("write_file", {"path": "project/free.md", "content": "mine\n"})
        assert [change.path for change in box.commit().changes] == ["project/free.md"]
