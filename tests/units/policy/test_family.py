"""Families: where parents are found, and every way in which they are not."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from kit.policy.files import SCOPES, write
from muniment.errors import PolicyInvalid
from muniment.policy.family import MAX_FILE_BYTES, MAX_GENERATIONS, parse_toml
from muniment.policy.load import load_files, load_policy


def refused(name_or_path, **terms):
    with pytest.raises(PolicyInvalid) as caught:
        load_files(str(name_or_path), **terms)
    assert str(caught.value).isprintable()
    return caught.value


@pytest.mark.parametrize("spelling", ["own", "./own.toml", "../here/own.toml", "link.toml", "hard.toml"])
def test_no_file_extends_itself_by_any_spelling(tmp_path, spelling):
    own = Path(write(tmp_path / "here" / "own.toml", extends=[spelling]))
    (own.parent / "link.toml").symlink_to("own.toml")
    (own.parent / "hard.toml").hardlink_to(own)
    problem = refused(own)
    assert problem.rule == "E121"
    assert "by way of own" in problem.problem


def test_no_file_is_its_own_remote_ancestor(tmp_path):
    own = write(tmp_path / "own.toml", extends=["./mid.toml"])
    write(tmp_path / "mid.toml", extends=["./loop/own.toml"])
    (tmp_path / "loop").symlink_to(tmp_path)
    problem = refused(own)
    assert problem.rule == "E121"
    assert "own → mid" in problem.problem


def line_of_ancestors(folder, count):
    for number in range(count - 1):
        write(folder / f"p{number}.toml", extends=[f"./p{number + 1}.toml"])
    write(folder / f"p{count - 1}.toml")
    return folder / "p0.toml"


def test_a_shorter_way_to_an_ancestor_does_not_hide_the_longer_one(tmp_path):
    line_of_ancestors(tmp_path, MAX_GENERATIONS - 2)
    write(tmp_path / "a.toml", extends=["./p0.toml"])
    assert load_files(write(tmp_path / "own.toml", extends=["./a.toml", "./p0.toml"]))
    write(tmp_path / "b.toml", extends=["./a.toml"])
    for both in (["./p0.toml", "./b.toml"], ["./b.toml", "./p0.toml"]):
        assert refused(write(tmp_path / "own.toml", extends=both)).rule == "E122"


def test_a_file_that_is_asked_for_by_name_calls_itself_so(tmp_path):
    write(tmp_path / "base.toml", "other")
    problem = refused(write(tmp_path / "own.toml", extends=["base"]))
    assert (problem.rule, problem.where) == ("E123", "base")
    assert "'other' (own)" in problem.problem
    assert load_policy(write(tmp_path / "own.toml", extends=["./base.toml"])).name == "own"
    assert refused("base", policies_dir=tmp_path).rule == "E123"


def test_two_different_policies_of_one_name_are_none(tmp_path):
    own = write(tmp_path / "mine" / "own.toml", extends=["base"])
    write(tmp_path / "mine" / "base.toml")
    write(tmp_path / "theirs" / "base.toml")
    assert load_files(own, policies_dir=tmp_path / "theirs")
    write(tmp_path / "theirs" / "base.toml", body=SCOPES)
    problem = refused(own, policies_dir=tmp_path / "theirs")
    assert problem.rule == "E124"
    assert "mine/base.toml" in problem.problem
    assert "theirs/base.toml" in problem.problem


def test_no_two_files_of_a_family_have_one_name(tmp_path):
    write(tmp_path / "a.toml", "same")
    write(tmp_path / "b.toml", "same", body=SCOPES)
    problem = refused(write(tmp_path / "own.toml", extends=["./a.toml", "./b.toml"]))
    assert (problem.rule, problem.where.endswith("b.toml")) == ("E124", True)


def test_a_hard_link_elsewhere_is_another_file_since_its_parents_are_others(tmp_path):
    original = Path(write(tmp_path / "a" / "mid.toml", extends=["./base.toml"]))
    write(tmp_path / "a" / "base.toml")
    write(tmp_path / "b" / "base.toml", "lax")
    (tmp_path / "b" / "mid.toml").hardlink_to(original)
    own = write(tmp_path / "own.toml", extends=["./a/mid.toml", "./b/mid.toml"])
    assert refused(own).rule == "E124"


def unreadable(folder):
    """Names of things that are no policy files."""
    os.mkfifo(folder / "fifo.toml")
    (folder / "folder.toml").mkdir()
    (folder / "loop.toml").symlink_to("loop.toml")
    (folder / "long.toml").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    (folder / "latin.toml").write_bytes(b"# \xe9\n")
    (folder / "file").write_text("")
    return ["fifo", "folder", "loop", "long", "latin"]


def test_what_is_no_readable_text_is_refused_and_not_waited_for(tmp_path):
    for name in unreadable(tmp_path):
        assert refused(tmp_path / f"{name}.toml").rule == "E100"
        assert refused(name, policies_dir=tmp_path).rule == "E100"
        problem = refused(write(tmp_path / "own.toml", extends=[name]))
        assert (problem.rule, name in problem.where) == ("E100", True)
        assert problem.problem.endswith("(own)")
    assert refused(tmp_path / "file" / "x.toml").rule == "E100"
    assert refused("/dev/null/").rule == "E100"
    assert "regular file" in refused(tmp_path / "fifo.toml").problem


def test_a_socket_is_no_policy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("s.toml")
        assert refused("s.toml").rule == "E100"


def test_parents_that_share_no_scope_are_named(tmp_path):
    write(tmp_path / "a.toml", body="[scopes]\nuser = {}\n")
    write(tmp_path / "b.toml", body="[scopes]\nteam = {}\n")
    problem = refused(write(tmp_path / "own.toml", body="", extends=["a", "./b.toml"]))
    assert problem.rule == "E125"
    assert "a, ./b.toml" in problem.problem
    problem = refused(write(tmp_path / "own.toml", body="[scopes]\nteam = {}\n", extends=["a"]))
    assert (problem.rule, problem.line) == ("E125", 4)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a = 1\nb = ?", 2, "line 2, column 5"),
        ('a = 1\nb = 2\na = "again"\n', 3, "line 3"),
        ("[a]\nb = 1\n[a]\n", 3, "line 3"),
        ("a = 1\nb = [\n", 3, "end of document"),
        ("x = " + "[" * 5_000, None, "too deeply"),
        ("x = " + "9" * 5_000, None, "not TOML"),
    ],
)
def test_what_is_no_toml_is_told_with_its_line(text, line, words):
    with pytest.raises(PolicyInvalid) as caught:
        parse_toml(text, "own")
    assert (caught.value.rule, caught.value.line) == ("E102", line)
    assert words in str(caught.value)
