"""`forget` and `dream` as commands: they preview, do it with --yes, and say how to take it back."""

from itertools import product

import pytest

from kit.memories import photograph, put
from kit.served import URL, serve
from muniment import api
from muniment.errors import InvalidScope, JobFailed
from muniment.testing.minds import ScriptedModel, say

FACT = "The user prefers dark mode in all editors"


def fill(roots):
    put(roots["user"], "editor/dark.md", "---\nname: Dark mode\n---\nPrefers dark mode in the editor\n")
    put(roots["user"], "list.md", "- dark mode at night\n- green tea\n")
    put(roots["user"], "pinned/dark.md", "dark mode, by hand\n")


def test_a_forget_shows_what_would_go_and_does_it_with_yes(muniment, roots, home):
    fill(roots)
    before = photograph(roots["user"])
    shown = muniment.lines("forget", "dark", "mode")
    entries = "editor/dark.md (Dark mode)", "list.md (dark mode at night)"
    would = [f"would be forgotten: user/{told}" for told in entries] + ["  1 | - dark mode at night"]
    assert shown[:4] == [*would, "not changed: user/pinned/dark.md (the policy protects it (rule 'pinned'))"]
    assert "with --yes" in " ".join(shown)
    assert (photograph(roots["user"]), home.exists()) == (before, False)
    done = muniment.lines("forget", "dark mode", "--yes")
    assert "forgotten: user/list.md (dark mode at night)" in done
    assert (roots["user"] / "list.md").read_text() == "- green tea\n"
    assert muniment("undo", " ".join(done).rpartition("muniment undo ")[2].strip()).exit_code == 0
    assert (roots["user"] / "list.md").read_text() == "- dark mode at night\n- green tea\n"
    shown = muniment.lines("forget", "user/editor/dark.md")  # A path is forgotten alone.
    assert shown[0] == "would be forgotten: user/editor/dark.md (Dark mode)"
    assert muniment("forget", "user/editor/dark.md", "--yes").exit_code == 0
    assert not (roots["user"] / "editor" / "dark.md").exists()
    assert "dark mode at night" in (roots["user"] / "list.md").read_text()


def test_what_is_not_there_is_no_failure_and_what_cannot_be_meant_is_one(muniment, roots):
    nothing = "no single entry matches: nothing, like; use its path or more of its words"
    assert muniment.lines("forget", "nothing-like-it", "--yes")[0] == nothing
    fill(roots)
    (told,) = muniment.lines("forget", "a", "--yes", code=1)
    assert told.startswith("nothing forgotten: the query contains no significant word")
    document = muniment.document("forget", "a", "--yes", code=1)
    assert (document["status"], document["error"]["code"]) == ("failed", "invalid_content")
    assert muniment("forget", "tea", "--model", "qwen").exit_code == 1
    assert muniment.document("dream", "--policy", "none-such", code=1)["status"] == "failed"


def test_a_language_model_is_asked_and_closed(muniment, roots, monkeypatch):
    fill(roots)
    opened = serve(monkeypatch, say('{"remove": ["c2"]}'))
    done = " ".join(muniment.lines("forget", "dark mode", "--yes", "--model", "qwen", "--base-url", URL))
    assert "forgotten: user/list.md" in done
    assert "note: qwen left out 1 of 2 that contain these words" in done
    assert opened[0].closed == 1
    assert (roots["user"] / "editor" / "dark.md").exists()


def test_a_dream_shows_what_would_be_done_and_does_it_with_yes(muniment, roots):
    for number in range(10):
        put(roots["user"], f"{number}.md", f"fact {number} has words {number}a {number}b {number}c\n")
    for name, text in {"a": FACT, "b": f"{FACT}.", "c": f"{FACT} again", "d": "see [x](gone.md)"}.items():
        put(roots["user"], f"{name}.md", f"{text}\n")
    would = ["would be merged: user/b.md", "similar: user/a.md, user/c.md"]
    would += ["would have merged 1; 14 entries checked", "  2 are similar, 1 links are broken"]
    assert muniment.lines("dream")[:4] == would
    assert (roots["user"] / "b.md").exists()
    done = muniment("dream", "--yes").stdout
    assert done.startswith("merged: user/b.md\n")
    assert "to undo it: muniment undo dream-" in done
    assert not (roots["user"] / "b.md").exists()
    assert muniment.document("dream")["summary"] == "would have changed nothing; 13 entries checked"


def test_many_groups_are_not_all_shown(muniment, roots):
    for number, end in product(range(7), ("one", "two")):
        words = " ".join(f"{number}{letter}" for letter in "abcdefghij")
        put(roots["user"], f"{number}-{end}.md", f"{words} {end}\n")
    shown = muniment("dream").stdout
    assert (shown.count("similar: "), "and 2 more groups" in shown) == (5, True)


def test_the_library_raises_what_the_result_tells(tmp_path, roots, home):
    fill(roots)
    failing = {"model": ScriptedModel([]), "on_model_failure": "fail"}
    with api.open(tmp_path, roots=roots, home=home, **failing) as memory:
        with pytest.raises(JobFailed, match="script"):
            memory.forget("dark mode")
        (removed,) = memory.forget("user/list.md").removed_entries
        assert removed[:3] == ("reference", "list", "user/list.md")
        assert memory.dream().deduped_paths == ()
        with pytest.raises(InvalidScope, match="unknown scope"):
            memory.dream(scope="team")
