"""`symlinks = "beneath"`: a link that stays inside its root leads to one file with one name; others are
escapes.
"""

import os
import stat
from contextlib import ExitStack

import pytest

from kit.catching import catch_error
from kit.memories import CANARY, make_roots, make_strict_policy, take_snapshot, write_file
from kit.sandbox.probe import make_zygote
from muniment import Sandbox
from muniment.errors import RememberPathEscape, StoreConflict
from muniment.kernel.binding import bind_all
from muniment.kernel.decide import Quota
from muniment.kernel.names import RelPath, Scope
from muniment.kernel.path import CanonicalPath
from muniment.names import ContextMode, Symlinks
from muniment.store.state import State


@pytest.fixture
def roots(tmp_path):
    roots = make_roots(tmp_path)
    user, project, outside = roots["user"], roots["project"], tmp_path / "outside"
    write_file(user, "real.md", "alpha\n")
    write_file(user, "topic/one.md", "alpha one\n")
    write_file(user, "pinned/p.md", "alpha pinned\n")
    write_file(user, ".hidden/h.md", f"alpha {CANARY}\n")
    write_file(user, "picture.png", f"alpha {CANARY}\n")
    write_file(user, "bad|name.md", f"alpha {CANARY}\n")
    write_file(project, "p.md", f"alpha {CANARY}\n")
    (user / "hard.md").hardlink_to(outside / "secret.md")
    os.mkfifo(user / "fifo.md")
    return roots


@pytest.fixture
def opened(roots):
    """Open sandboxes that resolve links; `test_fenced_answers.py` shows that a worker gives the same
    answers.
    """
    with ExitStack() as boxes:

        def open_box(*, symlinks="beneath", **terms):
            policy = make_strict_policy(require="none", **terms)
            return boxes.enter_context(Sandbox(policy, roots, symlinks=symlinks, in_process=True))

        yield open_box


def link(roots, links):
    for rel, target in links.items():
        path = roots["user"] / rel
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target.format(user=roots["user"], outside=roots["user"].parent / "outside"))


TOOLS = {
    "read_file": {},
    "grep": {"pattern": "alpha|canary"},
    "ls": {},
    "write_file": {"content": "beta\n"},
    "edit": {"old_string": "alpha", "new_string": "beta"},
}

FILE = dict.fromkeys(TOOLS) | {"ls": "not_a_file"}
ABSENT = dict.fromkeys(TOOLS, "not_found") | {"write_file": None}
READ_ONLY = FILE | {"write_file": "refused", "edit": "refused"}
ESCAPE = dict.fromkeys(TOOLS, "path_escape")
REFUSED = dict.fromkeys(TOOLS, "refused")
BAD = dict.fromkeys(TOOLS, "bad_name")
OUTWARDS = {"absolute, inside": "{user}/real.md", "dangling, outside": "../outside/born.md"}
OUTWARDS |= {"up and out": "../outside/secret.md", "out and in again": "../user/real.md"}
OUTWARDS |= {"a loop": "m.md", "magic": "/proc/self/environ", "a hard link": "hard.md"}
CHAIN = {"l.md": "t/m.md", "t": "topic", "topic/m.md": "../real.md"}

# The links, a path through them, the code of each tool, and the one name of the target.
SHAPES = {
    "to a file": ({"l.md": "real.md"}, "user/l.md", FILE, "user/real.md"),
    "a chain": (CHAIN, "user/l.md", FILE, "user/real.md"),
    "the root itself": ({"here": "."}, "user/here/real.md", FILE, "user/real.md"),
    "dangling": ({"l.md": "new/born.md"}, "user/l.md", ABSENT, "user/new/born.md"),
    **{name: ({"l.md": to, "m.md": "l.md"}, "user/l.md", ESCAPE, None) for name, to in OUTWARDS.items()},
    "a folder outside": ({"t": "../outside"}, "user/t/secret.md", ESCAPE, None),
    "named MEMORY.md": ({"MEMORY.md": "real.md"}, "user/MEMORY.md", READ_ONLY, "user/real.md"),
    "in pinned": ({"pinned/l.md": "../real.md"}, "user/pinned/l.md", READ_ONLY, "user/real.md"),
    "to the pinned folder": ({"t": "pinned"}, "user/t/p.md", READ_ONLY, "user/pinned/p.md"),
    "denied as written": ({".l.md": "real.md"}, "user/.l.md", REFUSED, None),
    "outside, denied as written": ({".l.md": "../outside/secret.md"}, "user/.l.md", REFUSED, None),
    "denied as resolved": ({"l.md": ".hidden/h.md"}, "user/l.md", REFUSED, None),
    "not allowed as resolved": ({"l.md": "picture.png"}, "user/l.md", REFUSED | {"ls": "not_a_file"}, None),
    "invalid name": ({"l.md": "bad|name.md"}, "user/l.md", BAD, None),
    "not UTF-8": ({"l.md": os.fsdecode(b"\xff.md")}, "user/l.md", BAD, None),
    "requests a folder": ({"l.md": "real.md/"}, "user/l.md", dict.fromkeys(TOOLS, "not_a_file"), None),
}


def filter_files(photo):
    """Remove directories, whose times change, and indexes."""
    return {
        name: state
        for name, state in photo.items()
        if not stat.S_ISDIR(state[0]) and (stat.S_ISLNK(state[0]) or not name.endswith("MEMORY.md"))
    }


@pytest.mark.sweep(8)
@pytest.mark.parametrize("shape", SHAPES)
def test_tools_resolve_links_inside_the_root_only(opened, roots, tmp_path, shape):
    links, path, codes, leads_to = SHAPES[shape]
    link(roots, links)
    for tool, more in TOOLS.items():
        before = filter_files(take_snapshot(tmp_path))
        box = opened(on_escape="refuse")
        outcome = box.call(tool, {"path": path, **more})
        assert outcome.code == codes[tool]
        assert CANARY not in outcome.text
        assert str(tmp_path) not in outcome.text
        writes = outcome.code is None and tool in {"write_file", "edit"}
        if outcome.code is None:
            assert f"{path} points " in outcome.text
            assert leads_to in outcome.text
            assert "alpha" in outcome.text or writes
        else:
            assert "\n" not in outcome.text
        assert [change.path for change in box.changes()] == ([leads_to] if writes else [])
        box.commit()
        after = filter_files(take_snapshot(tmp_path))
        target = str(tmp_path / leads_to) if writes else ""
        assert {name for name in after if after[name] != before.get(name)} == ({target} if writes else set())
        if writes:
            assert "beta" in (tmp_path / leads_to).read_text()
            write_file(tmp_path, leads_to, "alpha\n")
        if writes and codes is ABSENT:
            (tmp_path / leads_to).unlink()
    assert all((roots["user"] / rel).is_symlink() for rel in links if rel != "MEMORY.md")


def test_ls_shows_links_as_their_targets(opened, roots):
    shown = {"l.md": "real.md", "chain.md": "t/m.md", "topic/m.md": "../l.md", "t": "topic", "here": "."}
    shown |= {"MEMORY.md": "real.md", "to-late.md": "topic/late.md", "sub/only.md": "../real.md"}
    hidden = {"out.md": "../outside/secret.md", "out": "../outside", "absolute.md": "{user}/real.md"}
    hidden |= {"loop.md": "loop.md", ".dot.md": "real.md", "to-dot.md": ".hidden/h.md", "to-dots": ".hidden"}
    hidden |= {"to-picture.md": "picture.png", "to-fifo.md": "fifo.md", "to-hard.md": "hard.md"}
    hidden |= {"to-nothing.md": "nowhere.md", "to-bad.md": "bad|name.md", "as-folder.md": "real.md/"}
    link(roots, shown | hidden | {"none/out.md": "../../outside/secret.md"})
    box = opened(on_escape="refuse")
    box.call("write_file", {"path": "user/topic/late.md", "content": ""})
    assert box.call("ls", {"path": "user"}).text.split("\n") == [
        *("MEMORY.md (6 bytes)", "chain.md (6 bytes)", "hard.md", "here/", "l.md (6 bytes)", "pinned/"),
        *("real.md (6 bytes)", "sub/", "t/", "to-late.md (0 bytes)", "topic/", "[11 in all]"),
    ]
    assert box.call("ls", {"path": "user/t/"}).text == (
        "late.md (0 bytes)\nm.md (6 bytes)\none.md (10 bytes)\n[3 in all]\n[user/t points to user/topic]"
    )
    assert box.call("ls", {"path": "user/to-dots"}).code == "refused"


# -- one file has one name


def test_two_links_to_a_file_are_one_change_with_one_quota(opened, roots):
    more = {"topic/m.md": "../real.md", "n.md": "new/born.md", "s": "small"}
    link(roots, {"l.md": "real.md", "t": "topic"} | more)
    small = Quota(id="small", paths=("/*/small/**",), max_file_bytes=4)
    quotas = (Quota(id="all", paths=("/**",)), small)
    box = opened(limits={"files_written": 2, "write_bytes": 11}, quotas=quotas)
    path = CanonicalPath(Scope("user"), RelPath("l.md"))
    assert box.call("write_file", {"path": "user/s/x.md", "content": "beta\n"}).code == "quota"
    assert box.call("edit", {"path": "user/l.md", "old_string": "alpha", "new_string": "beta"}).text == (
        "changed user/real.md; user/l.md points there\n1\tbeta"
    )
    assert box.resolve_links(path).text == "user/real.md"
    assert box.call("read_file", {"path": "user/real.md"}).text == "1\tbeta"
    assert box.call("edit", {"path": "user/t/m.md", "old_string": "beta", "new_string": "gamma"}).code is None
    assert box.call("read_file", {"path": "user/l.md"}).text == "1\tgamma\n[user/l.md points to user/real.md]"
    done = box.call("write_file", {"path": "user/n.md", "content": "beta\n"})
    assert done.text == "created user/new/born.md (5 bytes); user/n.md points there"
    assert "n.md (5 bytes)\nnew/\n" in box.call("ls", {"path": "user"}).text
    assert box.call("grep", {"pattern": "beta"}).text == "user/new/born.md:1: beta"
    for other, code in (("other.md", "budget"), ("L.md", "exists_as")):
        assert box.call("write_file", {"path": f"user/{other}", "content": "beta\n"}).code == code
    committed = {change.path: change.kind for change in box.commit().changes}
    assert committed == {"user/new/born.md": "create", "user/real.md": "modify"}
    assert (roots["user"] / "real.md").read_text() == "gamma\n"
    assert (roots["user"] / "l.md").readlink().name == "real.md"
    link(roots, {"late.md": "real.md"})
    assert box.call("read_file", {"path": "user/late.md"}).text.startswith("1\tgamma\n"), (
        "links must be read again"
    )


# -- changes after the map was read


@pytest.fixture
def begun_box(opened, roots):
    link(roots, {"l.md": "real.md", "m.md": "new.md", "t": "topic"})
    box = opened(on_escape="refuse")
    assert box.call("ls", {"path": ""}).verdict == "allow"
    return box


def swap(path, target):
    path.rename(path.with_name(f"aside-{path.name}"))
    path.symlink_to(target)


@pytest.mark.threat("T-PATH-14", control="layer_one")
def test_link_created_after_the_map_is_an_escape(begun_box, roots, tmp_path):
    outside = tmp_path / "outside"
    link(roots, {"late.md": "real.md", "late-2.md": "topic", "late-3.md": "../outside/secret.md"})
    swap(roots["user"] / "t", outside)
    assert begun_box.call("read_file", {"path": "user/t/one.md"}).text.startswith("1\talpha one\n"), (
        "the old map must still apply"
    )
    swap(roots["user"] / "real.md", outside / "secret.md")
    swap(roots["user"] / "topic", outside)
    before = take_snapshot(outside)
    for tool, more in TOOLS.items():
        for path in ("l.md", "t/secret.md", "t/new.md", "late.md", "late-2.md", "late-3.md"):
            outcome = begun_box.call(tool, {"path": f"user/{path}", **more})
            assert (outcome.code, outcome.via) == ("path_escape", "symlink"), (tool, path)
    assert "late" not in begun_box.call("ls", {"path": "user"}).text
    assert take_snapshot(outside) == before


def test_changed_link_target_ends_the_commit(begun_box, roots, tmp_path):
    begun_box.call("write_file", {"path": "user/m.md", "content": f"{CANARY}\n"})
    write_file(roots["user"], "new.md", "theirs\n")
    before = take_snapshot(tmp_path)
    catch_error(StoreConflict, begun_box.commit)
    assert take_snapshot(tmp_path) == before
    begun_box.call("write_file", {"path": "user/l.md", "content": f"{CANARY}\n"})
    swap(roots["user"] / "real.md", tmp_path / "outside" / "secret.md")
    before = take_snapshot(tmp_path)
    catch_error(RememberPathEscape, begun_box.commit)
    assert take_snapshot(tmp_path) == before


def test_worker_that_proposes_a_linked_path_escapes(roots, tmp_path, monkeypatch):
    link(roots, {"link.md": "real.md", "linked": "topic"})
    before = take_snapshot(tmp_path)
    with make_zygote("lying_service:serve") as lying_zygote:
        monkeypatch.setattr("muniment.sandbox.fence.pool.get_shared_zygote", lambda: lying_zygote)
        for lie in ("link", "linked-directory", "claims-link"):
            with Sandbox(make_strict_policy(name=lie), roots, symlinks="beneath") as box:
                box.call("ls", {"path": "user"})
                assert box.changes() != []
                caught = catch_error(RememberPathEscape, box.commit)
            assert caught.via == "symlink"
    assert take_snapshot(tmp_path) == before


@pytest.mark.parametrize("in_process", [False, True])
def test_clean_run_sees_no_link(roots, in_process):
    link(roots, {"l.md": "real.md"})
    bound = bind_all(roots)
    terms = {"context": ContextMode.CLEAN, "symlinks": Symlinks.BENEATH, "in_process": in_process}
    with State(None) as state, ExitStack() as stack:
        stack.callback(lambda: [each.close() for each in bound.values()])
        policy = make_strict_policy(require="none")
        box = stack.enter_context(Sandbox.for_run(policy, bound, state, **terms))
        answer = box.call("write_file", {"path": "user/l.md", "content": "x\n"}).text
        assert answer == "created user/l.md (2 bytes)"
        assert [change.path for change in box.commit().changes] == ["user/l-2.md"]
