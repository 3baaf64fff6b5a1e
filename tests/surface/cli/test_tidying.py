"""`forget` and `dream` as commands: preview, `--yes`, and how to undo."""

from itertools import product

import pytest

from kit.memories import take_snapshot, write_file
from kit.model_stub import URL, install_model_stub
from muniment import api
from muniment.errors import InvalidScope, JobFailed
from muniment.testing.scripted_models import ScriptedModel, reply_with_text

FACT = "The user prefers dark mode in all editors"


def write_entries(roots):
    write_file(
        roots["user"], "editor/dark.md", "---\nname: Dark mode\n---\nPrefers dark mode in the editor\n"
    )
    write_file(roots["user"], "list.md", "- dark mode at night\n- green tea\n")
    write_file(roots["user"], "pinned/dark.md", "dark mode, by hand\n")


def test_forget_previews_and_applies_with_yes(cli, roots, home):
    write_entries(roots)
    before = take_snapshot(roots["user"])
    lines = cli.run_for_lines("forget", "dark", "mode")
    entries = "editor/dark.md (Dark mode)", "list.md (dark mode at night)"
    would = [f"would be forgotten: user/{entry}" for entry in entries] + ["  1 | - dark mode at night"]
    assert lines[:4] == [*would, "not changed: user/pinned/dark.md (the policy protects it (rule 'pinned'))"]
    assert "with --yes" in " ".join(lines)
    assert (take_snapshot(roots["user"]), home.exists()) == (before, False)
    done = cli.run_for_lines("forget", "dark mode", "--yes")
    assert "forgotten: user/list.md (dark mode at night)" in done
    assert (roots["user"] / "list.md").read_text() == "- green tea\n"
    assert cli("undo", " ".join(done).rpartition("muniment undo ")[2].strip()).exit_code == 0
    assert (roots["user"] / "list.md").read_text() == "- dark mode at night\n- green tea\n"
    lines = cli.run_for_lines("forget", "user/editor/dark.md")  # A path selects one entry only.
    assert lines[0] == "would be forgotten: user/editor/dark.md (Dark mode)"
    assert cli("forget", "user/editor/dark.md", "--yes").exit_code == 0
    assert not (roots["user"] / "editor" / "dark.md").exists()
    assert "dark mode at night" in (roots["user"] / "list.md").read_text()


def test_forget_without_match_succeeds_and_unusable_query_fails(cli, roots):
    nothing = "no single entry matches: nothing, like; use its path or more of its words"
    assert cli.run_for_lines("forget", "nothing-like-it", "--yes")[0] == nothing
    write_entries(roots)
    (message,) = cli.run_for_lines("forget", "a", "--yes", code=1)
    assert message.startswith("nothing forgotten: the query contains no significant word")
    document = cli.run_for_document("forget", "a", "--yes", code=1)
    assert (document["status"], document["error"]["code"]) == ("failed", "invalid_content")
    assert cli("forget", "tea", "--model", "qwen").exit_code == 1
    assert cli.run_for_document("dream", "--policy", "none-such", code=1)["status"] == "failed"


def test_forget_uses_and_closes_language_model(cli, roots, monkeypatch):
    write_entries(roots)
    models = install_model_stub(monkeypatch, reply_with_text('{"remove": ["c2"]}'))
    done = " ".join(cli.run_for_lines("forget", "dark mode", "--yes", "--model", "qwen", "--base-url", URL))
    assert "forgotten: user/list.md" in done
    assert "note: qwen left out 1 of 2 that contain these words" in done
    assert models[0].closed == 1
    assert (roots["user"] / "editor" / "dark.md").exists()


def test_dream_previews_and_applies_with_yes(cli, roots):
    for number in range(10):
        write_file(roots["user"], f"{number}.md", f"fact {number} has words {number}a {number}b {number}c\n")
    for name, text in {"a": FACT, "b": f"{FACT}.", "c": f"{FACT} again", "d": "see [x](gone.md)"}.items():
        write_file(roots["user"], f"{name}.md", f"{text}\n")
    expected = ["would be merged: user/b.md", "similar: user/a.md, user/c.md"]
    expected += ["would have merged 1; 14 entries checked", "  2 are similar, 1 links are broken"]
    assert cli.run_for_lines("dream")[:4] == expected
    assert (roots["user"] / "b.md").exists()
    done = cli("dream", "--yes").stdout
    assert done.startswith("merged: user/b.md\n")
    assert "to undo it: muniment undo dream-" in done
    assert not (roots["user"] / "b.md").exists()
    assert cli.run_for_document("dream")["summary"] == "would have changed nothing; 13 entries checked"


def test_dream_shows_five_groups_at_most(cli, roots):
    for number, end in product(range(7), ("one", "two")):
        text = " ".join(f"{number}{letter}" for letter in "abcdefghij")
        write_file(roots["user"], f"{number}-{end}.md", f"{text} {end}\n")
    output = cli("dream").stdout
    assert (output.count("similar: "), "and 2 more groups" in output) == (5, True)


def test_library_raises_failures_of_forget_and_dream(tmp_path, roots, home):
    write_entries(roots)
    failing = {"model": ScriptedModel([]), "on_model_failure": "fail"}
    with api.open(tmp_path, roots=roots, home=home, **failing) as memory:
        with pytest.raises(JobFailed, match="script"):
            memory.forget("dark mode")
        (removed,) = memory.forget("user/list.md").removed_entries
        assert removed[:3] == ("reference", "list", "user/list.md")
        assert memory.dream().deduped_paths == ()
        with pytest.raises(InvalidScope, match="unknown scope"):
            memory.dream(scope="team")
