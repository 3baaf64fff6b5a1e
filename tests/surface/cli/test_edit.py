"""`muniment edit` and manual corrections: derived fields are updated."""

import re
import sys
import tempfile

import pytest

from muniment.content.entry import parse

OLD_FACT, NEW_FACT = (
    "The user prefers dark mode in every editor",
    "The user prefers light mode in every editor",
)


def entry_file(roots, path):
    """Return the file of a logical path."""
    scope, _, rel = path.partition("/")
    return roots[scope] / rel


@pytest.fixture
def saved_path(cli):
    """Remember a fact and return its path."""
    return cli.run_for_document("remember", OLD_FACT)["files_touched"][0]


@pytest.fixture
def editor(monkeypatch, tmp_path):
    """Return a function that sets an editor which replaces text and exits with a code."""

    def use_editor(old, new, code=0):
        script = tmp_path / "editor.py"
        script.write_text(
            "import pathlib, sys\npath = pathlib.Path(sys.argv[1])\n"
            f"path.write_text(path.read_text().replace({old!r}, {new!r}))\nsys.exit({code})\n"
        )
        monkeypatch.setenv("EDITOR", f"{sys.executable} {script}")
        monkeypatch.delenv("VISUAL", raising=False)

    return use_editor


def test_edit_updates_title_description_and_index(cli, saved_path, editor, roots):
    editor(f"---\n{OLD_FACT}", f"---\n{NEW_FACT}")
    lines = cli.run_for_lines("edit", saved_path)
    new_path = saved_path.replace("dark", "light")  # The name is derived from the text.
    title = "Prefers {} mode in every editor".format
    changed = re.escape(f'changed: "{title("dark")}" → "{title("light")}"')
    found = re.fullmatch(rf"{changed} \(user/editor, (\w{{5}})\)", lines[0])
    assert cli.run_for_document("show", found[1])["path"] == new_path
    assert not entry_file(roots, saved_path).exists()
    entry = parse(entry_file(roots, new_path).read_bytes())
    assert (entry.body, entry.description, entry.name) == (
        f"{NEW_FACT}\n",
        NEW_FACT,
        "Prefers light mode in every editor",
    )
    assert entry.muniment["decided_by"] == "owner"
    index = entry_file(roots, f"{saved_path.partition('/')[0]}/MEMORY.md").read_text()
    assert ("light mode" in index, "dark mode" in index) == (True, False)
    cli.run_for_lines("undo", found[1])
    assert parse(entry_file(roots, saved_path).read_bytes()).body == f"{OLD_FACT}\n"


def test_edit_saves_nothing_if_unchanged_or_editor_fails(
    cli, saved_path, editor, roots, monkeypatch, tmp_path
):
    (tmp_path / "copies").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "copies"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    before = entry_file(roots, saved_path).read_bytes()
    editor("no such words", "x")
    assert cli.run_for_lines("edit", saved_path) == ["nothing was changed"]
    assert cli.run_for_document("edit", saved_path) == {"task_id": None, "path": saved_path, "notes": []}
    editor(OLD_FACT, NEW_FACT, code=3)
    (line,) = cli.run_for_lines("edit", saved_path, code=1)
    assert "exited with 3; nothing was saved; your text is in " in line
    editor(OLD_FACT, "my password is hunter2hunter2")
    lines = cli.run_for_lines("edit", saved_path, code=1)
    assert lines[0].startswith("note: your text is saved in ")
    assert "[remember_refused]" in lines[1]
    editor(f"---\n{OLD_FACT}", "---\n ")
    assert cli.run_for_error_code("edit", saved_path) == "invalid_content"
    monkeypatch.setenv("EDITOR", "/bin/rm -r")
    (line,) = cli.run_for_lines("edit", saved_path, code=1)
    assert line.endswith("nothing was saved [config_invalid]")
    monkeypatch.setenv("EDITOR", "/nowhere/editor")
    (line,) = cli.run_for_lines("edit", saved_path, code=1)
    assert "cannot be used: No such file or directory; nothing was saved" in line
    assert cli.run_for_error_code("edit", "user/nothing.md") == "not_found"
    assert cli.run_for_error_code("edit", f"{saved_path.partition('/')[0]}/MEMORY.md") == "remember_refused"
    editor(OLD_FACT, NEW_FACT)
    done = cli.run_for_document("edit", saved_path)
    assert done["path"] == saved_path.replace("dark", "light")
    cli.run_for_lines("undo", done["task_id"])
    for value in ("", "vi '"):
        monkeypatch.setenv("EDITOR", value)
        (line,) = cli.run_for_lines("edit", saved_path, code=1)
        assert line.startswith("not saved: no editor is configured; set VISUAL or EDITOR")
    assert entry_file(roots, saved_path).read_bytes() == before


def test_manual_edit_reaches_index_and_recall_but_keeps_name(cli, saved_path, roots):
    path = entry_file(roots, saved_path)
    path.write_text(path.read_text().replace(f"---\n{OLD_FACT}", f"---\n{NEW_FACT}"))
    note = f"note: {saved_path} was edited by hand since this task\n"
    assert cli("history", saved_path).stderr == note
    assert cli.run_for_document("history", saved_path)["edited_by_hand"] is True
    cli.run_for_lines("index", "rebuild")
    index = entry_file(roots, f"{saved_path.partition('/')[0]}/MEMORY.md").read_text()
    assert ("light mode" in index, "dark mode" in index) == (True, False)
    (found,) = cli.run_for_document("recall", "which editor mode?")["entries"]
    assert (found["name"], found["text"]) == ("Prefers light mode in every editor", NEW_FACT)
    renamed_text = path.read_text().replace("name: Prefers dark mode in every editor", "name: Looks")
    path.write_text(renamed_text.replace("light mode", "sepia mode"))
    cli.run_for_lines("index", "rebuild")
    index = entry_file(roots, f"{saved_path.partition('/')[0]}/MEMORY.md").read_text()
    assert "[Looks]" in index
    assert ("sepia mode" in index, "light mode" in index) == (True, False)


def test_update_prints_outdated_fact_and_history(cli):
    old, fact = "We deploy on Tuesdays", "We now deploy on Mondays, no longer on Tuesdays"
    path = cli.run_for_document("remember", old)["files_touched"][0]
    updated = re.compile(rf'updated: "{old}" → "{fact}" \(project/deploy, (\w{{5}})\)')
    dry_run = cli.run_for_lines("remember", fact, "--dry-run")[0]
    assert updated.fullmatch(dry_run.removeprefix("would be "))
    assert dry_run.startswith("would be ")
    handle = updated.fullmatch(cli.run_for_lines("remember", fact)[0])[1]
    assert cli.run_for_document("show", handle)["path"] == path  # The name has no day.
    steps = [each["kind"] for each in cli.run_for_document("history", path)["steps"]]
    assert steps == ["changed", "new"]
    listed = [each.text for each in cli.run_for_records("history", path)]
    assert listed == [f"~ {old} → {fact}", f"+ {old}"]
    assert cli.run_for_lines("remember", "thanks!") == [
        "nothing to remember: it is only thanks, a greeting, or a yes or no"
    ]


def test_commands_accept_handle_and_name_the_new_path(cli, saved_path, editor, roots):
    catalog_entry = cli.run_for_document("recall", "dark mode in the editor")["entries"][0]
    handle = catalog_entry["handle"]
    editor("dark", "light")
    edited = cli.run_for_document("edit", handle)["path"]
    assert edited == saved_path.replace("dark", "light")
    assert cli.run_for_document("show", handle.upper())["path"] == edited
    assert cli.run_for_document("why", handle)["path"] == edited
    (line,) = cli.run_for_lines("show", saved_path, code=1)
    assert f"not found; it is now {edited}" in line
    steps = cli.run_for_document("history", handle)["steps"]
    assert [(step["path"], step["kind"]) for step in steps][-1] == (saved_path, "new")
    task = steps[-1]["task"]
    assert OLD_FACT in cli.run_for_document("show", f"{saved_path}@{task}")["content"]
    assert cli.run_for_document("pin", handle)["previous_path"] == edited
    assert cli.run_for_document("pin", handle)["path"] == edited
    removed = cli.run_for_document("forget", handle, "--yes")["removed_entries"]
    assert [each.get("path", each.get("filePath")) for each in removed] == [edited]
    assert cli.run_for_error_code("show", handle) == "not_found"
    assert not entry_file(roots, edited).exists()
