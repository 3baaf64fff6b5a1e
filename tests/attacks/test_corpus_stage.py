"""Stages are built as the format says, also where no public case asks for it."""

from __future__ import annotations

import stat

import pytest

from muniment.testing.corpus import Stage, load_corpus

CORPUS = load_corpus()


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path / "case", "canary")


def test_placeholders_and_repetitions_are_filled_in_at_any_depth(stage):
    value = {"a": ["{user}/x", {"$repeat": ["ab", 2], "$pre": "<", "$post": "{outside}"}, None, 3]}
    assert stage.expand(value) == {"a": [f"{stage.tree}/user/x", f"<abab{stage.tree}/outside", None, 3]}


@pytest.mark.parametrize(
    ("text", "literal"),
    [("(.*a){25}$", "(.*a){25}$"), ("${HOME}", "${HOME}"), ("{{a,b}}", "{a,b}"), ("{{user}}", "{user}")],
)
def test_other_braces_stay(stage, text, literal):
    assert stage.expand(text) == literal


def test_forbidden_trees_hold_the_canary_and_roots_do_not(stage):
    assert {path.parent.name for path in stage.tree.rglob("secret.md")} == {"outside", "user-evil"}


@pytest.mark.parametrize("kind", ["symlink", "hardlink", "fifo", "mkdir"])
def test_a_name_is_replaced_by_any_kind_and_kept_aside(stage, kind):
    stage.prepare({"op": "write", "path": "{user}/a.md", "content": "old"})
    stage.prepare({"op": "replace", "path": "{user}/a.md", "kind": kind, "target": "{outside}/secret.md"})
    mode = (stage.scope("user") / "a.md").lstat().st_mode
    assert (
        stat.S_IFMT(mode)
        == {"symlink": stat.S_IFLNK, "hardlink": stat.S_IFREG, "fifo": stat.S_IFIFO, "mkdir": stat.S_IFDIR}[
            kind
        ]
    )
    assert [path.read_text() for path in stage.aside.iterdir()] == ["old"]


def test_a_socket_has_its_place_however_long_the_path(stage):
    stage.prepare({"op": "mkdir", "path": "{user}/" + "d" * 120})
    stage.prepare({"op": "socket", "path": "{user}/" + "d" * 120 + "/s.md"})
    (found,) = stage.scope("user").rglob("s.md")
    assert stat.S_ISSOCK(found.lstat().st_mode)


@pytest.mark.parametrize("operation", [{"op": "unheard", "path": "{user}"}, {"op": "swap", "path": "{user}"}])
def test_an_operation_that_is_not_understood_is_an_error(stage, operation):
    with pytest.raises(KeyError):
        stage.prepare(operation)


@pytest.mark.sweep(150)
@pytest.mark.parametrize("name", CORPUS.cases)
def test_the_setup_of_every_case_can_be_carried_out(tmp_path, name):
    stage = Stage(tmp_path / "case", CORPUS.canary)
    for operation in CORPUS.cases[name]["setup"]:
        if operation["op"] == "swap":
            stage.swap(operation)
        else:
            stage.prepare(operation)
    assert set(stage.photograph()) >= {"outside", "user-evil/secret.md"}
