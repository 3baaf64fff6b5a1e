"""Locks: a policy of a locked folder is the one that somebody looked at, or none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kit.policy.files import READ, SCOPES, write
from muniment.errors import PolicyInvalid
from muniment.policy.family import LOCK_NAME, render_lock
from muniment.policy.load import load_files, load_policy


def locked(folder, *paths, **digests):
    """Lock some files as they are."""
    found = {policy.name: policy.digest for policy in map(load_policy, paths)}
    (folder / LOCK_NAME).write_text(render_lock({**found, **digests}))


def refused(path, **terms):
    with pytest.raises(PolicyInvalid) as caught:
        load_files(str(path), **terms)
    assert str(caught.value).isprintable()
    return caught.value


@pytest.mark.parametrize(
    "text",
    [
        "own",
        "own = 1",
        'own = "abc"',
        f'own = "{"A" * 64}"',
        f'"Own Name" = "{"a" * 64}"',
        f'[own]\na = "{"a" * 64}"',
        f'own = "{"a" * 64}"\nown = "{"a" * 64}"',
        "x = " + "[" * 5_000,
    ],
)
def test_what_is_no_lock_means_no_policy(tmp_path, text):
    own = write(tmp_path / "own.toml")
    (tmp_path / LOCK_NAME).write_text(text)
    assert refused(own).rule == "E132"


def test_a_lock_that_cannot_be_read_means_no_policy(tmp_path):
    own = write(tmp_path / "own.toml")
    os.mkfifo(tmp_path / LOCK_NAME)
    assert refused(own).rule == "E132"
    (tmp_path / LOCK_NAME).unlink()
    (tmp_path / LOCK_NAME).write_bytes(b"\xff")
    problem = refused(own)
    assert problem.rule == "E132"
    assert f"muniment policy lock {tmp_path}" in problem.problem


@pytest.mark.threat("T-POL-04", control="locks_held")
def test_a_policy_that_was_edited_or_put_back_does_not_load(tmp_path):
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
    assert loaded.policy.digest[:8] in problem.problem
    assert was[:8] in problem.problem
    assert f"muniment policy lock {tmp_path}" in problem.problem


def test_a_policy_that_the_lock_does_not_name_does_not_load(tmp_path):
    locked(tmp_path, write(tmp_path / "own.toml"))
    problem = refused(write(tmp_path / "new.toml"))
    assert (problem.rule, "new is not in" in problem.problem) == ("E131", True)
    (tmp_path / LOCK_NAME).write_text("")
    assert refused(tmp_path / "own.toml").rule == "E131"


@pytest.mark.threat("T-POL-04", control="locks_held")
def test_an_ancestor_is_held_to_the_lock_of_its_own_folder(tmp_path):
    base = write(tmp_path / "base" / "base.toml")
    locked(tmp_path / "base", base)
    own = write(tmp_path / "own.toml", extends=["base/base.toml"])
    assert load_files(own).locks == (tmp_path / "base" / LOCK_NAME,)
    write(tmp_path / "base" / "base.toml", body=SCOPES + READ + "[limits]\nturns = 1\n")
    problem = refused(own)
    assert (problem.rule, problem.where) == ("E130", str(tmp_path / "base" / "base.toml"))


def test_a_change_of_a_parent_is_a_change_of_its_locked_child(tmp_path):
    base = tmp_path / "base" / "base.toml"
    write(base)
    own = write(tmp_path / "own.toml", extends=["base/base.toml"])
    locked(tmp_path, own)
    write(base, body=SCOPES)
    assert refused(own).rule == "E130"


def test_a_link_is_held_to_the_lock_beside_it_and_to_the_one_where_it_leads(tmp_path):
    real = write(tmp_path / "real" / "own.toml")
    (tmp_path / "own.toml").symlink_to(real)
    locked(tmp_path, real)
    locked(tmp_path / "real", real)
    found = load_files(str(tmp_path / "own.toml")).locks
    assert set(found) == {tmp_path / LOCK_NAME, tmp_path / "real" / LOCK_NAME}
    for folder in (tmp_path, tmp_path / "real"):
        before = (folder / LOCK_NAME).read_text()
        (folder / LOCK_NAME).write_text("")
        assert refused(tmp_path / "own.toml").rule == "E131"
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
