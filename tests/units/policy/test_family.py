"""Policy families: how parents are found, and every way to fail."""

import os
import socket
from pathlib import Path

import pytest

from kit.policy.files import READ, SCOPES, catch_invalid, write_policy
from muniment.policy.family import MAX_GENERATIONS, render_lock
from muniment.policy.files import LOCK_NAME, MAX_FILE_BYTES, parse_toml
from muniment.policy.load import load_files, load_policy


def expect_error(path, fragment="", **options):
    """Return the error of a file that does not load, and require a text in its message."""
    problem = catch_invalid(load_files, str(path), **options)
    assert fragment in problem.problem
    return problem


def test_file_that_extends_itself_is_rejected_in_any_spelling(tmp_path):
    for number, spelling in enumerate(["own", "./own.toml", "../here/own.toml", "link.toml", "hard.toml"]):
        own = Path(write_policy(tmp_path / str(number) / "here" / "own.toml", extends=[spelling]))
        (own.parent / "link.toml").symlink_to("own.toml")
        (own.parent / "hard.toml").hardlink_to(own)
        assert expect_error(own, "through own").rule == "E121", spelling
    own = write_policy(tmp_path / "own.toml", extends=["./mid.toml"])
    write_policy(tmp_path / "mid.toml", extends=["./loop/own.toml"])
    (tmp_path / "loop").symlink_to(tmp_path)
    assert expect_error(own, "own → mid").rule == "E121"


def test_too_deep_family_is_rejected_despite_a_shorter_path(tmp_path):
    last = MAX_GENERATIONS - 3
    for number in range(last + 1):
        write_policy(tmp_path / f"p{number}.toml", extends=[f"./p{number + 1}.toml"] if number < last else [])
    write_policy(tmp_path / "a.toml", extends=["./p0.toml"])
    write_policy(tmp_path / "b.toml", extends=["./a.toml"])
    assert load_files(write_policy(tmp_path / "own.toml", extends=["./a.toml", "./p0.toml"]))
    for both in (["./p0.toml", "./b.toml"], ["./b.toml", "./p0.toml"]):
        assert expect_error(write_policy(tmp_path / "own.toml", extends=both)).rule == "E122"


def test_requested_policy_must_have_the_requested_name(tmp_path):
    write_policy(tmp_path / "base.toml", "other")
    problem = expect_error(write_policy(tmp_path / "own.toml", extends=["base"]), "'other' (own)")
    assert (problem.rule, problem.where) == ("E123", "base")
    assert load_policy(write_policy(tmp_path / "own.toml", extends=["./base.toml"])).name == "own"
    assert expect_error("base", policies_dir=tmp_path).rule == "E123"


def test_two_different_policies_of_one_name_are_rejected(tmp_path):
    other_folder = tmp_path / "theirs"
    own = write_policy(tmp_path / "mine" / "own.toml", extends=["base"])
    write_policy(tmp_path / "mine" / "base.toml")
    write_policy(other_folder / "base.toml")
    assert load_files(own, policies_dir=other_folder)
    write_policy(other_folder / "base.toml", body=SCOPES)
    problem = expect_error(own, "mine/base.toml", policies_dir=other_folder)
    assert (problem.rule, "theirs/base.toml" in problem.problem) == ("E124", True)
    write_policy(tmp_path / "a.toml", "same")
    write_policy(tmp_path / "b.toml", "same", body=SCOPES)
    problem = expect_error(write_policy(tmp_path / "own.toml", extends=["./a.toml", "./b.toml"]))
    assert (problem.rule, problem.where.endswith("b.toml")) == ("E124", True)
    # A hard link in another folder is another file, because its parents differ.
    original = Path(write_policy(tmp_path / "a" / "mid.toml", extends=["./base.toml"]))
    write_policy(tmp_path / "a" / "base.toml")
    write_policy(tmp_path / "b" / "base.toml", "lax")
    (tmp_path / "b" / "mid.toml").hardlink_to(original)
    assert (
        expect_error(write_policy(tmp_path / "own.toml", extends=["./a/mid.toml", "./b/mid.toml"])).rule
        == "E124"
    )


def test_unreadable_files_are_rejected_without_blocking(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "fifo.toml")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    (tmp_path / "long.toml").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.toml")
        for name in ("fifo", "folder", "loop", "long", "latin", "socket"):
            assert expect_error(tmp_path / f"{name}.toml").rule == "E100", name
            assert expect_error(name, policies_dir=tmp_path).rule == "E100", name
            problem = expect_error(write_policy(tmp_path / "own.toml", extends=[name]))
            details = (name in problem.where, problem.problem.endswith("(own)"))
            assert (problem.rule, *details) == ("E100", True, True), name
    paths = (tmp_path / "long.toml" / "x.toml", "/dev/null/", "a\0/b.toml", "a\ud800/b.toml")
    assert {expect_error(path).rule for path in paths} == {"E100"}
    expect_error(tmp_path / "fifo.toml", "regular file")


def test_parents_without_a_common_scope_are_named(tmp_path):
    write_policy(tmp_path / "a.toml", body="[scopes]\nuser = {}\n")
    write_policy(tmp_path / "b.toml", body="[scopes]\nteam = {}\n")
    own = write_policy(tmp_path / "own.toml", body="", extends=["a", "./b.toml"])
    assert expect_error(own, "a, ./b.toml").rule == "E125"
    problem = expect_error(write_policy(tmp_path / "own.toml", body="[scopes]\nteam = {}\n", extends=["a"]))
    assert (problem.rule, problem.line) == ("E125", 4)


NO_TOML = [
    *(("a = 1\nb = ?", 2, "line 2, column 5"), ('a = 1\nb = 2\na = "again"\n', 3, "line 3")),
    *(("[a]\nb = 1\n[a]\n", 3, "line 3"), ("a = 1\nb = [\n", 3, "end of document")),
    *(("x = " + "[" * 5_000, None, "too deeply"), ("x = " + "9" * 5_000, None, "not TOML")),
]


def test_invalid_toml_is_reported_with_its_line():
    for text, line, words in NO_TOML:
        problem = catch_invalid(parse_toml, text, "own")
        assert (problem.rule, problem.line, words in str(problem)) == ("E102", line, True)


# -- locks: a locked folder loads only policies that its owner has reviewed --


def write_lock(folder, *paths):
    """Lock files in their current state."""
    (folder / LOCK_NAME).write_text(render_lock({each.name: each.digest for each in map(load_policy, paths)}))


def test_invalid_or_unreadable_lock_loads_no_policy(tmp_path):
    own, lock, digest = write_policy(tmp_path / "own.toml"), tmp_path / LOCK_NAME, "a" * 64
    os.mkfifo(lock)
    assert expect_error(own).rule == "E132"
    lock.unlink()
    strange = (f'own = "{"A" * 64}"', f'"Own Name" = "{digest}"', f'[own]\na = "{digest}"')
    twice = f'own = "{digest}"\nown = "{digest}"'
    for text in ("own", "own = 1", 'own = "abc"', twice, *strange, "x = " + "[" * 5_000, "\udcff"):
        lock.write_bytes(text.encode(errors="surrogateescape"))
        assert expect_error(own, f"muniment policy lock {tmp_path}").rule == "E132", text


@pytest.mark.threat("T-POL-04", control="locked_policies")
def test_edited_reverted_or_unlisted_policy_does_not_load(tmp_path):
    own, lock = write_policy(tmp_path / "own.toml"), tmp_path / LOCK_NAME
    old, was = Path(own).read_text(), load_policy(own).digest
    write_policy(tmp_path / "own.toml", body=SCOPES)
    write_lock(tmp_path, own)
    loaded = load_files(own)
    assert (loaded.locks, lock in loaded.paths) == ((lock,), True)
    Path(own).write_text(old)
    problem = expect_error(own)
    fragments = (loaded.policy.digest[:8], was[:8], f"muniment policy lock {tmp_path}")
    assert (problem.rule, [each in problem.problem for each in fragments]) == ("E130", [True] * 3)
    lock.write_text(f'own = "{was[:-1]}{"0" if was[-1] != "0" else "1"}"\n')
    assert expect_error(own).rule == "E130"  # Every character of the digest counts.
    assert expect_error(write_policy(tmp_path / "new.toml"), "new is not in").rule == "E131"
    lock.write_text("")
    assert expect_error(own).rule == "E131"


def test_parent_is_checked_by_its_lock_and_changes_its_child(tmp_path):
    base = tmp_path / "base" / "base.toml"
    write_policy(base)
    write_lock(base.parent, str(base))
    own = write_policy(tmp_path / "own.toml", extends=["base/base.toml"])
    assert load_files(own).locks == (base.parent / LOCK_NAME,)
    old_digest = load_policy(own).digest
    write_policy(base, body=SCOPES + READ + "[limits]\nturns = 1\n")
    problem = expect_error(own)
    assert (problem.rule, problem.where) == ("E130", str(base))
    (base.parent / LOCK_NAME).unlink()
    (tmp_path / LOCK_NAME).write_text(render_lock({"own": old_digest}))
    problem = expect_error(own)
    assert (problem.rule, problem.where) == ("E130", own)


def test_link_is_checked_by_both_locks_unless_unlocked(tmp_path):
    real, own = write_policy(tmp_path / "real" / "own.toml"), str(tmp_path / "own.toml")
    (tmp_path / "own.toml").symlink_to(real)
    folders = (tmp_path, tmp_path / "real")
    for folder in folders:
        write_lock(folder, real)
    assert set(load_files(own).locks) == {folder / LOCK_NAME for folder in folders}
    for folder in folders:
        before = (folder / LOCK_NAME).read_text()
        (folder / LOCK_NAME).write_text("")
        assert expect_error(own).rule == "E131"
        (folder / LOCK_NAME).write_text(before)
    base = write_policy(tmp_path / "base" / "base.toml")
    child = write_policy(tmp_path / "child" / "own.toml", extends=["../base/base.toml"])
    for path in (base, child):
        (Path(path).parent / LOCK_NAME).write_text("")
    assert expect_error(child, unlocked=tmp_path / "child").rule == "E131"
    assert load_files(base, unlocked=tmp_path / "base")
    (tmp_path / "base" / LOCK_NAME).unlink()
    assert load_files(child, unlocked=tmp_path / "base" / ".." / "child").locks == ()
