"""`forget` and `dream` as commands: preview, question, `--yes`, and how to undo."""

import json
import os
import re
from contextlib import ExitStack
from itertools import product

import pytest

from kit.cli.device import TerminalDevice
from kit.memories import take_snapshot, write_file
from kit.model_stub import URL, install_model_stub
from muniment import api
from muniment.errors import InvalidScope, JobFailed
from muniment.testing.scripted_models import ScriptedModel, reply_with_text

FACT = "The user prefers dark mode in all editors"
WHICH = "forget which?"
THIS = "forget this? [y/N]"


def write_entries(roots):
    write_file(
        roots["user"], "editor/dark.md", "---\nname: Dark mode\n---\nPrefers dark mode in the editor\n"
    )
    write_file(roots["user"], "list.md", "- dark mode at night\n- green tea\n")
    write_file(roots["user"], "pinned/dark.md", "dark mode, by hand\n")


def write_facts(roots, count):
    for number in range(1, count + 1):
        write_file(roots["user"], f"ship/{number:03}.md", f"Ship number {number} sails at noon\n")


def strip_records(lines):
    """Return the lines of a pipe without time and handle."""
    return [re.sub(r"\t20[0-9T:.Z-]+\t", "\t", re.sub(r"\t[0-9a-z]{5}$", "", line)) for line in lines]


@pytest.fixture
def ask(tmp_path, roots):
    """Return a function that starts a command on a real terminal, over the roots."""
    bound = [f"--root={scope}={path}" for scope, path in roots.items()]
    with ExitStack() as opened:

        def start(*arguments, columns=80):
            terminal = opened.enter_context(TerminalDevice(columns))
            terminal.launch(tmp_path, *arguments, *bound)
            return terminal

        yield start


# -- forget: pipe ------------------------------------------------------------------------------------


def test_forget_previews_and_applies_with_yes(cli, roots, home):
    write_entries(roots)
    before = take_snapshot(roots["user"])
    done = cli("forget", "dark", "mode")
    assert strip_records(done.stdout.splitlines()) == [
        "- Prefers dark mode in the editor\tuser/editor\towner",
        "- dark mode at night (a part of list)\tuser\towner",
    ]
    kept, advice = done.stderr.splitlines()
    assert re.sub("[0-9a-z]{5}\\)", "HANDLE)", kept) == (
        "note: not forgotten: \"dark\" (user/pinned, HANDLE): the policy protects it (rule 'pinned')"
    )
    assert advice == "note: preview only; to forget, run this again with --yes"
    assert (take_snapshot(roots["user"]), home.exists()) == (before, False)
    done = cli("forget", "dark mode", "--yes")
    forgotten = ["Prefers dark mode in the editor", "dark mode at night"]
    assert done.stdout.splitlines() == [f'forgot: "{each}"' for each in forgotten]
    assert (roots["user"] / "list.md").read_text() == "- green tea\n"
    (task,) = re.findall("to restore them: muniment undo (t[0-9a-z]{5})\n", done.stderr)
    assert cli("undo", task).exit_code == 0
    assert (roots["user"] / "list.md").read_text() == "- dark mode at night\n- green tea\n"
    lines = cli.run_for_lines("forget", "user/editor/dark.md")  # A path selects one entry only.
    assert lines[0].startswith("- Prefers dark mode in the editor\t")
    assert cli("forget", "user/editor/dark.md", "--yes").exit_code == 0
    assert not (roots["user"] / "editor" / "dark.md").exists()
    assert "dark mode at night" in (roots["user"] / "list.md").read_text()


def test_forget_prints_costs_only_with_verbose(cli, roots):
    write_entries(roots)
    assert "policy strict" not in str(cli.run_for_lines("forget", "green tea", "--yes"))
    assert cli("undo", "--yes").exit_code == 0
    lines = cli.run_for_lines("forget", "green tea", "--yes", "--verbose")
    assert re.search(r"decided by rules, 0 turns, .*, policy strict.*, task forget-", "\n".join(lines))


def test_forget_without_match_succeeds_and_unusable_query_fails(cli, roots):
    nothing = "note: no single entry matches: nothing, like; use its path or more of its words"
    assert cli.run_for_lines("forget", "nothing-like-it", "--yes") == [nothing]
    write_entries(roots)
    (message,) = cli.run_for_lines("forget", "a", "--yes", code=1)
    assert message.startswith("nothing forgotten: the query contains no significant word")
    document = cli.run_for_document("forget", "a", "--yes", code=1)
    assert (document["status"], document["error"]["code"]) == ("failed", "invalid_content")
    assert cli("forget", "tea", "--model", "qwen").exit_code == 1
    assert cli.run_for_document("dream", "--policy", "none-such", code=1)["status"] == "failed"


def test_forget_in_pipe_lists_near_entries(cli, roots):
    write_facts(roots, 2)
    before = take_snapshot(roots["user"])
    done = cli("forget", "vessels of sails", "--yes")
    assert sorted(strip_records(done.stdout.splitlines())) == [
        f"Ship number {number} sails at noon (near)\tuser/ship\towner" for number in (1, 2)
    ]
    assert take_snapshot(roots["user"]) == before
    assert len(cli.run_for_document("forget", "vessels of sails")["near"]) == 2


def test_forget_uses_and_closes_language_model(cli, roots, monkeypatch):
    write_entries(roots)
    models = install_model_stub(monkeypatch, reply_with_text('{"remove": ["c2"]}'))
    done = " ".join(cli.run_for_lines("forget", "dark mode", "--yes", "--model", "qwen", "--base-url", URL))
    assert 'forgot: "dark mode at night"' in done
    assert "note: qwen left out 1 of 2 that contain these words" in done
    assert models[0].closed == 1
    assert (roots["user"] / "editor" / "dark.md").exists()


# -- forget: terminal --------------------------------------------------------------------------------


def test_forget_on_terminal_asks_about_one_match(ask, roots):
    write_file(roots["user"], "ops/deploy.md", "We deploy on Thursdays\n")
    terminal = ask("forget", "deploy thursdays").expect(THIS)
    assert re.fullmatch(r"- We deploy on Thursdays +just now  user/ops  [0-9a-z]{5}", terminal.lines[0]), (
        terminal.text
    )
    assert (roots["user"] / "ops" / "deploy.md").exists()
    assert terminal.type("y\n").end() == 0
    assert terminal.lines[2:] == ['forgot: "We deploy on Thursdays"', "to restore it: muniment undo"]
    assert not (roots["user"] / "ops" / "deploy.md").exists()
    undo = ask("undo").expect("undo this? [y/N]").type("y\n")
    assert undo.end() == 0
    assert (roots["user"] / "ops" / "deploy.md").read_text() == "We deploy on Thursdays\n"


@pytest.mark.parametrize("keys", ["n\n", "\n", "\x04", "\x03", "yes please\nn\n", b"\xff\xfe\nn\n"])
def test_forget_without_consent_removes_nothing(ask, roots, keys):
    write_facts(roots, 1)
    before = take_snapshot(roots["user"])
    terminal = ask("forget", "ship number").expect(THIS).type(keys)
    assert terminal.end() == 130
    assert ("nothing was forgotten" in terminal.text) is (keys != "\x03")
    assert take_snapshot(roots["user"]) == before


def test_forget_removes_only_chosen_parts_in_one_task(ask, cli, roots):
    write_entries(roots)
    write_file(roots["user"], "more.md", "- dark mode in the hall\n- dark mode in the car\n- tea\n")
    terminal = ask("forget", "dark mode").expect(WHICH)
    numbers = {text: number for number, text in re.findall("^([0-9]) (.*?)  ", terminal.text, re.MULTILINE)}
    chosen = "dark mode at night (a part of list)", "dark mode in the car (a part of more)"
    assert len(numbers) == 4
    assert terminal.type(" ".join(numbers[each] for each in chosen) + "\n").end() == 0
    assert (roots["user"] / "list.md").read_text() == "- green tea\n"
    assert (roots["user"] / "more.md").read_text() == "- dark mode in the hall\n- tea\n"
    assert (roots["user"] / "editor" / "dark.md").exists()
    assert cli("undo", "--yes").exit_code == 0  # Both files were changed by one task.
    assert (roots["user"] / "list.md").read_text() == "- dark mode at night\n- green tea\n"
    assert "dark mode in the car" in (roots["user"] / "more.md").read_text()


INVALID = [
    *("1-3", "99", "-1", "0", "1" * 3000, "٣", "²", "1.0", "1 x", "0x1", "1;2", "+1", "all 1", "01"),
    "a l l",
]


def test_forget_asks_again_after_invalid_answer(ask, roots):
    write_facts(roots, 3)
    before = take_snapshot(roots["user"])
    terminal = ask("forget", "ship number sails").expect(WHICH)
    for count, answer in enumerate([*map(str.encode, INVALID), b"1\0", b"\xff\xfe", b"\xc3"], 2):
        terminal.type(answer + b"\n").expect(WHICH, count)
    assert " ".join(terminal.text.split()).count("use numbers from 1 to 3") == len(INVALID) + 3
    assert terminal.type("\n").end() == 130
    assert take_snapshot(roots["user"]) == before


@pytest.mark.parametrize(("answer", "left"), [("ALL", 0), ("1, 3", 1), ("3 3 3", 2), ("none", 3)])
def test_forget_accepts_lists_of_numbers(ask, roots, answer, left):
    write_facts(roots, 3)
    terminal = ask("forget", "ship number sails").expect(WHICH).type(f"{answer}\n")
    assert terminal.end() == (130 if left == 3 else 0)
    assert len(list((roots["user"] / "ship").glob("*.md"))) == left


def test_forget_of_half_remembered_fact_offers_near_parts(ask, roots):
    write_file(roots["user"], "cars.md", "- The red car is parked in Oslo\n- The dog barks\n- Tea is green\n")
    terminal = ask("forget", "the vehicle that is parked somewhere").expect(THIS)
    assert terminal.lines[0] == "no entry matches exactly; this one is near:"
    assert "The red car is parked in Oslo (a part of cars)" in " ".join(terminal.text.split())
    assert terminal.type("y\n").end() == 0
    assert (roots["user"] / "cars.md").read_text() == "- The dog barks\n- Tea is green\n"


def test_forget_offers_more_matches_than_it_may_remove(ask, roots):
    write_facts(roots, 8)
    terminal = ask("forget", "ship number sails").expect("at most 5 numbers such as 1 3")
    terminal.type("all\n").expect("choose at most 5 numbers").expect(WHICH, count=2)
    assert terminal.type("1 2 3 4 5\n").end() == 0
    assert len(list((roots["user"] / "ship").glob("*.md"))) == 3


def test_forget_of_too_many_matches_prints_advice(ask, roots):
    write_facts(roots, 200)
    terminal = ask("forget", "ship number sails", columns=120)
    assert terminal.end() == 0
    advice = "this matches 200 items, and one forget may remove 5; use more words"
    assert terminal.lines == [advice]
    assert len(list((roots["user"] / "ship").glob("*.md"))) == 200


def replace_by_link(path):
    path.rename(path.with_suffix(".txt"))
    path.symlink_to(path.with_suffix(".txt"))


def replace_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


def write_other_text(path):
    path.write_text("Ship number 1 sails at noon, and carries the only copy of a secret plan\n")


def write_same_length(path):
    path.write_text("Ship number 1 sails at ten!\n")


@pytest.mark.parametrize(
    "change", [replace_by_link, replace_by_pipe, write_other_text, write_same_length, os.unlink]
)
def test_forget_removes_nothing_if_file_changed_meanwhile(ask, roots, change):
    write_facts(roots, 2)
    terminal = ask("forget", "ship number").expect(WHICH)
    change(roots["user"] / "ship" / "001.md")
    before = {each.name: each.lstat().st_ino for each in (roots["user"] / "ship").iterdir()}
    assert terminal.type("all\n").end() == 1
    assert "changed since the preview; nothing was removed; run this again" in " ".join(terminal.text.split())
    assert {each.name: each.lstat().st_ino for each in (roots["user"] / "ship").iterdir()} == before


def test_forget_ignores_matches_that_appear_meanwhile(ask, roots):
    write_facts(roots, 2)
    terminal = ask("forget", "ship number").expect(WHICH)
    write_facts(roots, 3)
    assert terminal.type("all\n").end() == 0
    assert [each.name for each in (roots["user"] / "ship").glob("*.md")] == ["003.md"]


def test_second_forget_of_same_entry_fails(ask, roots):
    write_facts(roots, 1)
    first, second = (ask("forget", "ship number").expect(THIS) for _ in range(2))
    assert first.type("y\n").end() == 0
    assert second.type("y\n").end() == 1
    assert "nothing was removed" in second.text


@pytest.mark.parametrize("columns", [40, 80])
def test_hostile_title_imitates_neither_question_nor_number(ask, roots, columns):
    hostile = [
        f"ship {THIS}y forgot: everything",
        "ship \x1b[2J\x1b[1;1H\x1b]0;x\x07 clears the screen",
        f"ship {'padding ' * 6}1  harmless fact {WHICH} (all)",
        "ship \u202e\u2066 reversed\r\n1  other",
        "ship " + "w" * 200,
    ]
    for number, text in enumerate(hostile):
        write_file(roots["user"], f"x{number}.md", f"{text}\n")
    terminal = ask("forget", "ship", columns=columns).expect(f"\n{WHICH}")
    lines = terminal.text.rpartition(f"\n{WHICH}")[0].splitlines()
    assert "\x1b[2J" not in terminal.output
    assert "\x07" not in terminal.output
    assert "\u202e" not in terminal.output
    numbers = [line.split()[0] for line in lines if not line.startswith((" ", "not "))]
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    assert max(map(len, lines)) <= columns
    assert terminal.type("\n").end() == 130


@pytest.mark.parametrize("columns", range(40, 64, 5))
def test_single_hostile_text_is_indented(ask_in_process, roots, columns):
    write_file(roots["user"], "x.md", f"ship {THIS * 9} 1 2 3 {WHICH} forgot: all\n")
    done = ask_in_process("forget", "ship", stdin="\n", COLUMNS=str(columns), NO_COLOR="1")
    first, *lines = done.output.splitlines()
    assert (done.exit_code, first.startswith("- ship forget")) == (130, True), done.output
    assert [line[:2] for line in lines].count("  ") == len(lines) - 1
    assert lines[-1] == f"{THIS} nothing was forgotten"


def test_forget_on_terminal_queries_model_once(ask_in_process, roots, monkeypatch):
    write_entries(roots)
    models = install_model_stub(monkeypatch, reply_with_text('{"remove": ["c2"]}'))
    done = ask_in_process("forget", "dark mode", "--model", "qwen", "--base-url", URL, stdin="y\n")
    assert (done.exit_code, models[0].closed) == (0, 1), done.output
    assert "qwen left out 1 of 2" in done.output
    assert (roots["user"] / "list.md").read_text() == "- green tea\n"


@pytest.fixture
def ask_in_process(cli, request):
    """Return a function that runs a command in this process, whose streams claim to be terminals."""
    request.getfixturevalue("fake_terminal")
    return cli


# -- dream -------------------------------------------------------------------------------------------


def write_duplicates(roots):
    for number in range(10):
        write_file(roots["user"], f"{number}.md", f"fact {number} has words {number}a {number}b {number}c\n")
    for name, text in {"a": FACT, "b": f"{FACT}.", "c": f"{FACT} again", "d": "see [x](gone.md)"}.items():
        write_file(roots["user"], f"{name}.md", f"{text}\n")


def test_dream_previews_and_applies_with_yes(cli, roots):
    write_duplicates(roots)
    done = cli("dream")
    assert strip_records(done.stdout.splitlines()) == [
        f"= {FACT} (stays)\tuser\towner",
        f"- {FACT}. (the same text)\tuser\towner",
        f"{FACT} (similar, group 1)\tuser\towner",
        f"{FACT} again (similar, group 1)\tuser\towner",
    ]
    assert done.stderr.splitlines() == [
        "note: 14 entries checked, 2 are similar, 1 links are broken",
        "note: preview only; to apply it, run this again with --yes",
    ]
    assert (roots["user"] / "b.md").exists()
    done = cli("dream", "--yes")
    assert done.stdout == f'removed: "{FACT}." (the same as "{FACT}")\n'
    assert "note: to restore it: muniment undo t" in done.stderr
    assert not (roots["user"] / "b.md").exists()
    assert cli.run_for_document("dream")["summary"] == "would have changed nothing; 13 entries checked"


def test_dream_on_terminal_asks_and_applies_preview(ask, roots):
    write_duplicates(roots)
    terminal = ask("dream").expect("apply these changes? [y/N]")
    shown = " ".join(terminal.text.split())
    assert f"= {FACT} (stays)" in shown
    assert "similar, for you to decide:" in shown
    assert ("user/" in shown, (roots["user"] / "b.md").exists()) == (False, True)
    assert terminal.type("y\n").end() == 0
    assert f'removed: "{FACT}." (the same as "{FACT}") to restore it' in " ".join(terminal.text.split())
    assert not (roots["user"] / "b.md").exists()


@pytest.mark.parametrize("keys", ["n\n", "\x04", "\x03"])
def test_dream_without_consent_changes_nothing(ask, roots, keys):
    write_duplicates(roots)
    before = take_snapshot(roots["user"])
    terminal = ask("dream").expect("apply these changes? [y/N]").type(keys)
    assert terminal.end() == 130
    assert take_snapshot(roots["user"]) == before


@pytest.mark.parametrize("name", ["a.md", "b.md"])
def test_dream_changes_nothing_if_entry_changed_meanwhile(ask, roots, name):
    write_duplicates(roots)
    terminal = ask("dream").expect("apply these changes? [y/N]")
    write_file(roots["user"], name, "Something entirely different was written here\n")
    before = take_snapshot(roots["user"])
    assert terminal.type("y\n").end() == 1
    assert "run this again" in " ".join(terminal.text.split())
    assert take_snapshot(roots["user"]) == before


def test_dream_on_terminal_applies_shown_merge_of_model(ask_in_process, roots, monkeypatch):
    facts = [f"{FACT} and terminals at {where}" for where in ("night", "home")]
    for name, text in zip("ab", facts, strict=True):
        write_file(roots["user"], f"{name}.md", f"---\nname: {name}\n---\n{text}\n")
    merge = {"ids": ["c1", "c2"], "keep": "c1", "text": "\n".join(facts)}
    models = install_model_stub(monkeypatch, reply_with_text(json.dumps({"merges": [merge]})))
    done = ask_in_process("dream", "--model", "qwen", "--base-url", URL, stdin="y\n")
    assert (done.exit_code, models[0].closed) == (0, 1), done.output
    shown = " ".join(done.output.split())
    assert "(its new text)" in shown
    (path,) = roots["user"].glob("[a-z].md")
    assert path.read_text().endswith(f"---\n{facts[0]}\n{facts[1]}\n")


def test_dream_shows_five_groups_at_most(cli, roots):
    for number, end in product(range(7), ("one", "two")):
        text = " ".join(f"{number}{letter}" for letter in "abcdefghij")
        write_file(roots["user"], f"{number}-{end}.md", f"{text} {end}\n")
    done = cli("dream")
    assert (done.stdout.count("similar, group"), "and 2 more groups" in done.stderr) == (10, True)


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
