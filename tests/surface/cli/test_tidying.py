"""`forget` and `dream` as commands: they preview, do it with --yes, and say how to take it back."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from kit.memories import make_roots, photograph, put
from kit.served import URL, serve
from muniment import api
from muniment.cli.app import app
from muniment.errors import ForgetFailed, InvalidScope
from muniment.testing.minds import ScriptedModel, say


@pytest.fixture
def roots(tmp_path):
    return make_roots(tmp_path)


@pytest.fixture
def muniment(tmp_path, roots):
    def run(*arguments, **environment):
        (tmp_path / "workspace").mkdir(exist_ok=True)
        places = [f"--root={scope}={path}" for scope, path in roots.items()]
        places.append(f"--workspace={tmp_path / 'workspace'}")
        env = {"MUNIMENT_HOME": str(tmp_path / "home"), **environment}
        return CliRunner().invoke(app, [*arguments, *places], env=env)

    return run


def fill(roots):
    put(roots["user"], "editor/dark.md", "---\nname: Dark mode\n---\nPrefers dark mode in the editor\n")
    put(roots["user"], "list.md", "- dark mode at night\n- green tea\n")
    put(roots["user"], "pinned/dark.md", "dark mode, by hand\n")


def test_a_forget_shows_what_would_go_and_does_it_with_yes(muniment, roots):
    fill(roots)
    before = photograph(roots["user"])
    shown = muniment("forget", "dark", "mode")
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[:3] == [
        "would be forgotten: user/editor/dark.md (Dark mode)",
        "would be forgotten: user/list.md (dark mode at night)",
        "kept: user/pinned/dark.md (the policy protects it (rule 'pinned'))",
    ]
    assert "with --yes" in shown.stdout
    assert photograph(roots["user"]) == before
    done = muniment("forget", "dark mode", "--yes")
    assert done.exit_code == 0
    assert "forgotten: user/list.md (dark mode at night)" in done.stdout
    assert (roots["user"] / "list.md").read_text() == "- green tea\n"
    task = done.stdout.rpartition("muniment undo ")[2].strip()
    undone = muniment("undo", task)
    assert undone.exit_code == 0
    assert (roots["user"] / "list.md").read_text() == "- dark mode at night\n- green tea\n"
    assert (roots["user"] / "editor" / "dark.md").exists()


def test_a_path_is_forgotten_alone(muniment, roots):
    fill(roots)
    shown = muniment("forget", "user/editor/dark.md")
    assert shown.stdout.splitlines()[0] == "would be forgotten: user/editor/dark.md (Dark mode)"
    assert muniment("forget", "user/editor/dark.md", "--yes").exit_code == 0
    assert not (roots["user"] / "editor" / "dark.md").exists()
    assert (roots["user"] / "list.md").exists()


def test_nothing_to_forget_is_said_and_is_no_failure(muniment):
    done = muniment("forget", "nothing-like-it", "--yes")
    assert done.exit_code == 0
    assert done.stdout.startswith("nothing that may be removed holds all of: nothing, like\n")


def test_a_query_without_a_word_fails(muniment, roots):
    fill(roots)
    done = muniment("forget", "a", "--yes")
    assert done.exit_code == 1
    assert "nothing forgotten: there is no word in this that says what to forget" in done.stderr
    document = json.loads(muniment("forget", "a", "--yes", "--json").stdout)
    assert (document["status"], document["error"]["code"]) == ("failed", "invalid_content")


def test_a_setting_that_cannot_be_used_is_told(muniment):
    assert muniment("forget", "tea", "--model", "qwen").exit_code == 1
    done = muniment("dream", "--policy", "none-such", "--json")
    assert (done.exit_code, json.loads(done.stdout)["status"]) == (1, "failed")


def test_a_language_model_is_asked_and_closed(muniment, roots, monkeypatch):
    fill(roots)
    opened = serve(monkeypatch, say('{"remove": ["c2"]}'))
    done = muniment("forget", "dark mode", "--yes", "--model", "qwen", "--base-url", URL)
    assert done.exit_code == 0
    assert "forgotten: user/list.md" in done.stdout
    assert "note: qwen left out 1 of 2 that hold these words" in done.stderr
    assert opened[0].closed == 1
    assert (roots["user"] / "editor" / "dark.md").exists()


FACT = "The user prefers dark mode in all editors"


def test_a_dream_shows_what_would_be_done_and_does_it_with_yes(muniment, roots):
    for number in range(10):
        put(roots["user"], f"{number}.md", f"fact {number} has words {number}a {number}b {number}c\n")
    put(roots["user"], "a.md", f"{FACT}\n")
    put(roots["user"], "b.md", f"{FACT}.\n")
    put(roots["user"], "c.md", f"{FACT} again\n")
    put(roots["user"], "d.md", "see [x](gone.md)\n")
    shown = muniment("dream")
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[:4] == [
        "would be merged: user/b.md",
        "alike: user/a.md, user/c.md",
        "would have merged 1; 14 entries looked at",
        "  2 are alike, 1 links lead to nothing",
    ]
    assert (roots["user"] / "b.md").exists()
    done = muniment("dream", "--yes")
    assert done.exit_code == 0
    assert done.stdout.startswith("merged: user/b.md\n")
    assert "to take it back: muniment undo dream-" in done.stdout
    assert not (roots["user"] / "b.md").exists()
    document = json.loads(muniment("dream", "--json").stdout)
    assert document["summary"] == "would have changed nothing; 13 entries looked at"


def test_many_groups_are_not_all_shown(muniment, roots):
    for number in range(7):
        for end in ("one", "two"):
            words = " ".join(f"{number}{letter}" for letter in "abcdefghij")
            put(roots["user"], f"{number}-{end}.md", f"{words} {end}\n")
    shown = muniment("dream")
    assert shown.stdout.count("alike: ") == 5
    assert "and 2 more groups" in shown.stdout


def test_the_library_raises_what_the_result_tells(tmp_path, roots):
    fill(roots)
    with api.open(tmp_path, roots=roots, home=tmp_path / "home", model=ScriptedModel([])) as memory:
        with pytest.raises(ForgetFailed, match="script"):
            memory.forget("dark mode", yes=True)
        assert memory.dream(yes=True).deduped_entries == ()
    with api.open(tmp_path, roots=roots, home=tmp_path / "home") as memory:
        (removed,) = memory.forget("green tea", yes=True).removed_entries
        assert removed == ("reference", "green tea", "user/list.md")
        with pytest.raises(InvalidScope, match="no scope"):
            memory.dream(scope="team")
