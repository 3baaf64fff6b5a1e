"""Stages are built as the format says, also where no public case asks for it."""

from __future__ import annotations

import stat

import pytest

from muniment.testing.corpus import Stage, load_corpus

CORPUS = load_corpus()


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path / "case", "canary")


def test_placeholders_and_repetitions_are_filled_in_at_any_depth_and_other_braces_stay(stage):
    value = {"a": ["{user}/x", {"$repeat": ["ab", 2], "$pre": "<", "$post": "{outside}"}, None, 3]}
    assert stage.expand(value) == {"a": [f"{stage.tree}/user/x", f"<abab{stage.tree}/outside", None, 3]}
    literals = {"{{a,b}}": "{a,b}", "{{user}}": "{user}"} | {text: text for text in ("(.*a){25}$", "${HOME}")}
    assert {text: stage.expand(text) for text in literals} == literals


def test_forbidden_trees_hold_the_canary_and_roots_do_not(stage):
    assert {path.parent.name for path in stage.tree.rglob("secret.md")} == {"outside", "user-evil"}


def test_a_name_is_replaced_by_any_kind_and_kept_aside(tmp_path):
    kinds = {"symlink": stat.S_IFLNK, "hardlink": stat.S_IFREG, "fifo": stat.S_IFIFO, "mkdir": stat.S_IFDIR}
    for kind, expected in kinds.items():
        stage = Stage(tmp_path / kind, "canary")
        stage.prepare({"op": "write", "path": "{user}/a.md", "content": "old"})
        stage.prepare({"op": "replace", "path": "{user}/a.md", "kind": kind, "target": "{outside}/secret.md"})
        assert stat.S_IFMT((stage.scope("user") / "a.md").lstat().st_mode) == expected
        assert [path.read_text() for path in stage.aside.iterdir()] == ["old"]


def test_a_socket_has_its_place_however_long_the_path(stage):
    stage.prepare({"op": "mkdir", "path": "{user}/" + "d" * 120})
    stage.prepare({"op": "socket", "path": "{user}/" + "d" * 120 + "/s.md"})
    (found,) = stage.scope("user").rglob("s.md")
    assert stat.S_ISSOCK(found.lstat().st_mode)


def test_an_operation_that_is_not_understood_is_an_error(stage):
    for operation in ("unheard", "swap"):
        with pytest.raises(KeyError):
            stage.prepare({"op": operation, "path": "{user}"})


def test_every_kind_of_setup_can_be_carried_out(tmp_path):
    """That of every case is, where the corpus is run."""
    kinds = {
        frozenset((operation["op"], operation.get("kind")) for operation in case["setup"]): case["setup"]
        for case in CORPUS.cases.values()
    }
    for number, setup in enumerate(kinds.values()):
        stage = Stage(tmp_path / str(number), CORPUS.canary)
        for operation in setup:
            (stage.swap if operation["op"] == "swap" else stage.prepare)(operation)
        assert set(stage.photograph()) >= {"outside", "user-evil/secret.md"}
