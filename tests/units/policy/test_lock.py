"""Locks: a policy of a locked folder is the one that somebody looked at, or none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kit.policy.files import READ, SCOPES, refusal, write
from muniment.policy.family import LOCK_NAME, render_lock
from muniment.policy.load import load_files, load_policy


def locked(folder, *paths):
    """Lock some files as they are."""
    found = {policy.name: policy.digest for policy in map(load_policy, paths)}
    (folder / LOCK_NAME).write_text(render_lock(found))


def refused(path, **terms):
    return refusal(load_files, str(path), **terms)


def test_what_is_no_lock_or_cannot_be_read_means_no_policy(tmp_path):
    own, lock, digest = write(tmp_path / "own.toml"), tmp_path / LOCK_NAME, "a" * 64
    os.mkfifo(lock)
    assert refused(own).rule == "E132"
    lock.unlink()
    twice = f'own = "{digest}"\nown = "{digest}"'
    strange = (f'own = "{"A" * 64}"', f'"Own Name" = "{digest}"', f'[own]\na = "{digest}"', twice)
    for text in ("own", "own = 1", 'own = "abc"', *strange, "x = " + "[" * 5_000):
        lock.write_text(text)
        assert refused(own).rule == "E132", text
    lock.write_bytes(b"\xff")
    problem = refused(own)
    assert problem.rule == "E132"
    assert f"muniment policy lock {tmp_path}" in problem.problem


@pytest.mark.threat("T-POL-04", control="locks_held")
def test_a_policy_that_was_edited_or_put_back_or_is_not_named_does_not_load(tmp_path):
    own = write(tmp_path / "own.toml")
    old = Path(own).read_text()
    was = load_policy(own).digest
    write(tmp_path / "own.toml", body=SCOPES)
    locked(tmp_path, own)
    loaded = load_files(own)
    assert loaded.locks == (tmp_path / LOCK_NAME,)
    assert tmp_path / LOCK_NAME in loaded.paths
    Path(own).write_text(old)
    problem = refused(own)
    assert problem.rule == "E130"
    for told in (loaded.policy.digest[:8], was[:8], f"muniment policy lock {tmp_path}"):
        assert told in problem.problem
    other = "0" if was[-1] != "0" else "1"
    (tmp_path / LOCK_NAME).write_text(f'own = "{was[:-1]}{other}"\n')
    assert refused(own).rule == "E130"  # All of a digest counts.
    problem = refused(write(tmp_path / "new.toml"))
    assert (problem.rule, "new is not in" in problem.problem) == ("E131", True)
    (tmp_path / LOCK_NAME).write_text("")
    assert refused(own).rule == "E131"


@pytest.mark.threat("T-POL-04", control="locks_held")
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


def test_a_link_is_held_to_the_lock_beside_it_and_to_the_one_where_it_leads(tmp_path):
    real = write(tmp_path / "real" / "own.toml")
    (tmp_path / "own.toml").symlink_to(real)
    folders = (tmp_path, tmp_path / "real")
    for folder in folders:
        locked(folder, real)
    own = str(tmp_path / "own.toml")
    assert set(load_files(own).locks) == {folder / LOCK_NAME for folder in folders}
    for folder in folders:
        before = (folder / LOCK_NAME).read_text()
        (folder / LOCK_NAME).write_text("")
        assert refused(own).rule == "E131"
        (folder / LOCK_NAME).write_text(before)


def test_one_folder_may_be_left_out_for_those_who_edit_there(tmp_path):
    base = write(tmp_path / "base" / "base.toml")
    (tmp_path / "base" / LOCK_NAME).write_text("")
    own = write(tmp_path / "own.toml", extends=["base/base.toml"])
    (tmp_path / LOCK_NAME).write_text("")
    assert refused(own, unlocked=tmp_path).rule == "E131"
    assert load_files(base, unlocked=tmp_path / "base")
    (tmp_path / "base" / LOCK_NAME).unlink()
    assert load_files(own, unlocked=tmp_path / "base" / "..").locks == ()
