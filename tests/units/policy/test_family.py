"""Families: where parents are found, and every way in which they are not."""

import os
import socket
from pathlib import Path

import pytest

from kit.policy.files import READ, SCOPES, refusal, write
from muniment.policy.family import LOCK_NAME, MAX_FILE_BYTES, MAX_GENERATIONS, parse_toml, render_lock
from muniment.policy.load import load_files, load_policy


def refused(path, told="", **terms):
    """Why a file does not load, which tells something."""
    problem = refusal(load_files, str(path), **terms)
    assert told in problem.problem
    return problem


def test_no_file_extends_itself_by_any_spelling_nor_is_its_own_remote_ancestor(tmp_path):
    for number, spelling in enumerate(["own", "./own.toml", "../here/own.toml", "link.toml", "hard.toml"]):
        own = Path(write(tmp_path / str(number) / "here" / "own.toml", extends=[spelling]))
        (own.parent / "link.toml").symlink_to("own.toml")
        (own.parent / "hard.toml").hardlink_to(own)
        assert refused(own, "through own").rule == "E121", spelling
    own = write(tmp_path / "own.toml", extends=["./mid.toml"])
    write(tmp_path / "mid.toml", extends=["./loop/own.toml"])
    (tmp_path / "loop").symlink_to(tmp_path)
    assert refused(own, "own → mid").rule == "E121"


def test_a_shorter_way_to_an_ancestor_does_not_hide_the_longer_one(tmp_path):
    last = MAX_GENERATIONS - 3
    for number in range(last + 1):
        write(tmp_path / f"p{number}.toml", extends=[f"./p{number + 1}.toml"] if number < last else [])
    write(tmp_path / "a.toml", extends=["./p0.toml"])
    write(tmp_path / "b.toml", extends=["./a.toml"])
    assert load_files(write(tmp_path / "own.toml", extends=["./a.toml", "./p0.toml"]))
    for both in (["./p0.toml", "./b.toml"], ["./b.toml", "./p0.toml"]):
        assert refused(write(tmp_path / "own.toml", extends=both)).rule == "E122"


def test_a_file_that_is_asked_for_by_name_calls_itself_so(tmp_path):
    write(tmp_path / "base.toml", "other")
    problem = refused(write(tmp_path / "own.toml", extends=["base"]), "'other' (own)")
    assert (problem.rule, problem.where) == ("E123", "base")
    assert load_policy(write(tmp_path / "own.toml", extends=["./base.toml"])).name == "own"
    assert refused("base", policies_dir=tmp_path).rule == "E123"


def test_two_different_policies_of_one_name_are_none(tmp_path):
    theirs = tmp_path / "theirs"
    own = write(tmp_path / "mine" / "own.toml", extends=["base"])
    write(tmp_path / "mine" / "base.toml")
    write(theirs / "base.toml")
    assert load_files(own, policies_dir=theirs)
    write(theirs / "base.toml", body=SCOPES)
    problem = refused(own, "mine/base.toml", policies_dir=theirs)
    assert (problem.rule, "theirs/base.toml" in problem.problem) == ("E124", True)
    write(tmp_path / "a.toml", "same")
    write(tmp_path / "b.toml", "same", body=SCOPES)
    problem = refused(write(tmp_path / "own.toml", extends=["./a.toml", "./b.toml"]))
    assert (problem.rule, problem.where.endswith("b.toml")) == ("E124", True)
    # A hard link elsewhere is another file, since its parents are others.
    original = Path(write(tmp_path / "a" / "mid.toml", extends=["./base.toml"]))
    write(tmp_path / "a" / "base.toml")
    write(tmp_path / "b" / "base.toml", "lax")
    (tmp_path / "b" / "mid.toml").hardlink_to(original)
    assert refused(write(tmp_path / "own.toml", extends=["./a/mid.toml", "./b/mid.toml"])).rule == "E124"


def test_what_is_no_readable_text_is_refused_and_not_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "fifo.toml")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    (tmp_path / "long.toml").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.toml")
        for name in ("fifo", "folder", "loop", "long", "latin", "socket"):
            assert refused(tmp_path / f"{name}.toml").rule == "E100", name
            assert refused(name, policies_dir=tmp_path).rule == "E100", name
            problem = refused(write(tmp_path / "own.toml", extends=[name]))
            told = (name in problem.where, problem.problem.endswith("(own)"))
            assert (problem.rule, *told) == ("E100", True, True), name
    paths = (tmp_path / "long.toml" / "x.toml", "/dev/null/", "a\0/b.toml", "a\ud800/b.toml")
    assert {refused(path).rule for path in paths} == {"E100"}
    refused(tmp_path / "fifo.toml", "regular file")


def test_parents_that_share_no_scope_are_named(tmp_path):
    write(tmp_path / "a.toml", body="[scopes]\nuser = {}\n")
    write(tmp_path / "b.toml", body="[scopes]\nteam = {}\n")
    own = write(tmp_path / "own.toml", body="", extends=["a", "./b.toml"])
    assert refused(own, "a, ./b.toml").rule == "E125"
    problem = refused(write(tmp_path / "own.toml", body="[scopes]\nteam = {}\n", extends=["a"]))
    assert (problem.rule, problem.line) == ("E125", 4)


NO_TOML = [
    *(("a = 1\nb = ?", 2, "line 2, column 5"), ('a = 1\nb = 2\na = "again"\n', 3, "line 3")),
    *(("[a]\nb = 1\n[a]\n", 3, "line 3"), ("a = 1\nb = [\n", 3, "end of document")),
    *(("x = " + "[" * 5_000, None, "too deeply"), ("x = " + "9" * 5_000, None, "not TOML")),
]


def test_what_is_no_toml_is_told_with_its_line():
    for text, line, words in NO_TOML:
        problem = refusal(parse_toml, text, "own")
        assert (problem.rule, problem.line, words in str(problem)) == ("E102", line, True)


# -- locks: a policy of a locked folder is the one that somebody looked at, or none --


def locked(folder, *paths):
    """Lock some files as they are."""
    (folder / LOCK_NAME).write_text(render_lock({each.name: each.digest for each in map(load_policy, paths)}))


def test_what_is_no_lock_or_cannot_be_read_means_no_policy(tmp_path):
    own, lock, digest = write(tmp_path / "own.toml"), tmp_path / LOCK_NAME, "a" * 64
    os.mkfifo(lock)
    assert refused(own).rule == "E132"
    lock.unlink()
    strange = (f'own = "{"A" * 64}"', f'"Own Name" = "{digest}"', f'[own]\na = "{digest}"')
    twice = f'own = "{digest}"\nown = "{digest}"'
    for text in ("own", "own = 1", 'own = "abc"', twice, *strange, "x = " + "[" * 5_000, "\udcff"):
        lock.write_bytes(text.encode(errors="surrogateescape"))
        assert refused(own, f"muniment policy lock {tmp_path}").rule == "E132", text


@pytest.mark.threat("T-POL-04", control="locks_held")
def test_a_policy_that_was_edited_or_put_back_or_is_not_named_does_not_load(tmp_path):
    own, lock = write(tmp_path / "own.toml"), tmp_path / LOCK_NAME
    old, was = Path(own).read_text(), load_policy(own).digest
    write(tmp_path / "own.toml", body=SCOPES)
    locked(tmp_path, own)
    loaded = load_files(own)
    assert (loaded.locks, lock in loaded.paths) == ((lock,), True)
    Path(own).write_text(old)
    problem = refused(own)
    told = (loaded.policy.digest[:8], was[:8], f"muniment policy lock {tmp_path}")
    assert (problem.rule, [each in problem.problem for each in told]) == ("E130", [True] * 3)
    lock.write_text(f'own = "{was[:-1]}{"0" if was[-1] != "0" else "1"}"\n')
    assert refused(own).rule == "E130"  # All of a digest counts.
    assert refused(write(tmp_path / "new.toml"), "new is not in").rule == "E131"
    lock.write_text("")
    assert refused(own).rule == "E131"


def test_an_ancestor_is_held_to_the_lock_of_its_own_folder_and_changes_its_locked_child(tmp_path):
    base = tmp_path / "base" / "base.toml"
    write(base)
    locked(base.parent, str(base))
    own = write(tmp_path / "own.toml", extends=["base/base.toml"])
    assert load_files(own).locks == (base.parent / LOCK_NAME,)
    as_it_was = load_policy(own).digest
    write(base, body=SCOPES + READ + "[limits]\nturns = 1\n")
    problem = refused(own)
    assert (problem.rule, problem.where) == ("E130", str(base))
    (base.parent / LOCK_NAME).unlink()
    (tmp_path / LOCK_NAME).write_text(render_lock({"own": as_it_was}))
    problem = refused(own)
    assert (problem.rule, problem.where) == ("E130", own)


def test_a_link_is_held_to_both_locks_and_one_folder_may_be_left_out_for_those_who_edit_there(tmp_path):
    real, own = write(tmp_path / "real" / "own.toml"), str(tmp_path / "own.toml")
    (tmp_path / "own.toml").symlink_to(real)
    folders = (tmp_path, tmp_path / "real")
    for folder in folders:
        locked(folder, real)
    assert set(load_files(own).locks) == {folder / LOCK_NAME for folder in folders}
    for folder in folders:
        before = (folder / LOCK_NAME).read_text()
        (folder / LOCK_NAME).write_text("")
        assert refused(own).rule == "E131"
        (folder / LOCK_NAME).write_text(before)
    base = write(tmp_path / "base" / "base.toml")
    child = write(tmp_path / "child" / "own.toml", extends=["../base/base.toml"])
    for path in (base, child):
        (Path(path).parent / LOCK_NAME).write_text("")
    assert refused(child, unlocked=tmp_path / "child").rule == "E131"
    assert load_files(base, unlocked=tmp_path / "base")
    (tmp_path / "base" / LOCK_NAME).unlink()
    assert load_files(child, unlocked=tmp_path / "base" / ".." / "child").locks == ()
