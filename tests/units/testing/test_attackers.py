"""The attacker of the races, and the witness that reports changes and leaked secrets."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

import pytest

from kit.catching import catch_error
from muniment.testing import race
from muniment.testing.race import Swap, make_decoy
from muniment.testing.snapshots import compare_snapshots, find_text, take_snapshot


@pytest.fixture
def names(tmp_path):
    """The path of a directory with a file, and its decoy."""
    for top, text in (("root/folder", "inside\n"), ("outside", "outside\n")):
        (tmp_path / top).mkdir(parents=True)
        (tmp_path / top / "a.md").write_text(text)
    return tmp_path / "root" / "folder", make_decoy(tmp_path / "decoy", "symlink", tmp_path / "outside")


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kind", ["hardlink", "symlink", "fifo"])
def test_file_is_exchanged_with_any_kind_and_restored(names, tmp_path, kind):
    path, secret, kinds = names[0] / "a.md", tmp_path / "outside" / "a.md", set()
    with Swap(path, make_decoy(tmp_path / kind, kind, secret)) as swap:
        for _ in swap.rounds(exchanges=100, enough=lambda: len(kinds) == 2):
            found = path.lstat()
            kinds.add((found.st_mode, found.st_ino))
    assert (len(kinds), path.read_text()) == (2, "inside\n")
    catch_error(KeyError, make_decoy, tmp_path / "other", "mkdir", "")


def test_attacker_that_fails_is_reported_or_killed(names, monkeypatch):
    path, swap = names[0], Swap(*names)
    stuck = Swap(path, path / "a.md")  # A directory cannot be exchanged with its own content.
    with stuck, pytest.raises(RuntimeError, match="EINVAL"):
        list(stuck.rounds(exchanges=1))
    assert stuck.problem == "cannot exchange: EINVAL"
    with monkeypatch.context() as changed:
        changed.setattr(race, "RESTORE_SECONDS", 0.0)
        os.kill(swap.__enter__()._process.pid, 19)
        catch_error(subprocess.TimeoutExpired, swap.__exit__)
    assert swap._process.returncode == -9
    monkeypatch.setattr(race.sys, "executable", "/bin/false")
    catch_error(RuntimeError, Swap(*names).__enter__, match="did not start: exit 1")
    monkeypatch.undo()
    path.rename(path.with_name("elsewhere"))  # It waits for a missing name, and still ends.
    with Swap(*names) as swap:
        pass
    assert (swap.exchanges, swap.problem) == (0, None)


CANARY = "canary-51d0"


def make_tree(top):
    (top / "folder").mkdir(parents=True)
    (top / "folder" / "a.md").write_text("alpha\n")
    (top / "b.md").write_text("beta\n")
    (top / "b.md").chmod(0o644)
    (top / "link").symlink_to("b.md")
    return top


def test_changes_are_reported(tmp_path):
    for number, (deed, report) in enumerate(
        (
            (lambda tree: (tree / "new.md").touch(), "'tree/new.md' appeared"),
            (lambda tree: (tree / "b.md").unlink(), "'tree/b.md' vanished"),
            (lambda tree: (tree / "b.md").chmod(0o600), "'tree/b.md' changed: mode"),
            (lambda tree: (tree / "b.md").write_text("BETA\n"), "'tree/b.md' changed: content, modified"),
            (lambda tree: os.truncate(tree / "b.md", 4), "'tree/b.md' changed: size, content, modified"),
            (lambda tree: os.utime(tree / "b.md"), "'tree/b.md' changed: modified"),
            (lambda tree: (tree / "twin").hardlink_to(tree / "b.md"), "'tree/b.md' changed: links"),
            (lambda tree: os.utime(tree / "folder"), "'tree/folder' changed: modified"),
        )
    ):
        tree = make_tree(tmp_path / str(number))
        before = take_snapshot({"tree": tree})
        deed(tree)
        assert report in compare_snapshots(before, take_snapshot({"tree": tree}), reads=False)


@dataclass(frozen=True, slots=True)
class Record:
    text: str
    parts: object


class Opaque:
    def __repr__(self):
        return f"<{CANARY}>"


def test_secret_is_found_in_any_object_or_tree(tmp_path):
    tree, secret_bytes = make_tree(tmp_path / "tree"), f"x{CANARY}".encode()
    for evidence, places in (
        *(
            (each, ["it"])
            for each in (f"a {CANARY} b", secret_bytes, bytearray(secret_bytes), memoryview(secret_bytes))
        ),
        *((each, ["it"]) for each in (Opaque(), ValueError(CANARY))),
        *(([1, None, {"a": (CANARY,)}], ["it[2]['a'][0]"]), ({CANARY: 1}, ["it[key 0]"])),
        *(({("a", CANARY): 1}, ["it[key 0][1]"]), ({CANARY}, ["it[0]"])),
        *((Record("x", [Record(CANARY, None)]), ["it.parts[0].text"]), ([CANARY[:-1], CANARY[1:]], [])),
        ({"a": [0, 1.5, True, None, b"", "", Record("", ())]}, []),
    ):
        assert find_text(CANARY, {"it": evidence}) == places, evidence
    (tree / "folder" / "x.bin").write_bytes(b"\0" + CANARY.encode())
    (tree / f"{CANARY}.md").touch()
    (tree / "leads").symlink_to(CANARY)
    os.mkfifo(tree / "fifo")
    found = find_text(CANARY, {"tree": tree, "file": tree / "folder" / "x.bin", "none": tmp_path / "missing"})
    assert found == [f"tree:{CANARY}.md", "tree:folder/x.bin", "tree:leads", "file"]
