"""remember, ls, show, index, tool: exit codes, messages to act on, one document for machines."""

import io
import json
import os
import re
import signal
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from kit.memories import CANARY, IN_A_WORKER, photograph, put
from kit.policy.files import rule, write
from kit.served import URL, serve
from muniment import api
from muniment.agent.model import ModelError
from muniment.agent.runner import ToolDecision
from muniment.cli import entry
from muniment.cli import remember as command
from muniment.errors import WorkerLost
from muniment.names import MAX_FACT_BYTES
from muniment.operations import owner, visibility
from muniment.sandbox.tools.calls import Outcome
from muniment.store.index_plan import IndexCheck
from muniment.testing.minds import ScriptedModel, call, calls, say

FACT = "The user prefers dark mode"
WRITES = (calls(call("write_file", path="user/a.md", content=f"{FACT}\n")), say("Saved."))
GONE = Mock(side_effect=ModelError("\x1b[2J\u202egone"))
LLM = ("--model=m", f"--base-url={URL}")


def scripted(monkeypatch, *steps):
    """In the place of the rules."""
    real = api.open_model

    def opened(settings, environment):
        is_rules = settings.model == "rules"
        return nullcontext(ScriptedModel(steps)) if is_rules else real(settings, environment)

    monkeypatch.setattr(api, "open_model", opened)


# -- remember ------------------------------------------------------------------------------------------


def test_remember_similar_fact_prints_the_older_path(muniment):
    saved, _ = muniment.lines("remember", "The replica is on port 5433")
    older = saved.removeprefix("saved (new): ")
    assert muniment.lines("remember", "The replica is on port 5434")[1] == f"  similar, both kept: {older}"
    document = muniment.document("remember", "The replica is on port 5435")
    assert older in [each["path"] for each in document["similar"]]


def test_remember_says_whether_a_fact_expires_or_ends(muniment, roots):
    for fact, option, key, line in (
        (FACT, ["--expires", "2098-12-31"], "expires", "  expires: hidden after 2098-12-31"),
        (
            f"{FACT} until 2098-12-31",
            [],
            "ends",
            "  ends on 2098-12-31, by its own words; after that, recall",
        ),
    ):
        saved, *_, ends, _ = muniment.lines("remember", fact, *option)
        assert ends.startswith(line)
        text = (roots["user"] / saved.removeprefix("saved (new): user/")).read_text()
        assert f"\n{key}: 2098-12-31\n" in text
    document = muniment.document("remember", "The user likes kites", "--expires=30d")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", document["expires"])
    (told,) = muniment.lines("remember", FACT, "--expires", "soon", code=1)
    assert told.startswith("not saved: invalid expiry 'soon': use today or a later day (2026-12-31)")


def test_a_fact_is_saved_in_two_lines_and_known_the_next_time(muniment, roots):
    saved, how = muniment.lines("remember", FACT)
    path = saved.removeprefix("saved (new): user/")
    assert FACT in (roots["user"] / path).read_text()
    assert re.match(rf"  rules, .*enforcement {IN_A_WORKER}", how)
    assert muniment.lines("remember", "-", stdin=f"  {FACT}\n") == [f"already known: user/{path}"]


def test_a_run_that_the_kernel_holds_less_says_what_was_missing(muniment, monkeypatch):
    from kit.sandbox.probe import SERVICES  # Here: in `kit.elsewhere` there is no fence.
    from muniment.sandbox.fence.pool import Zygote, import_directories

    with Zygote("claiming_service:serve", directories=(*import_directories(), SERVICES)) as zygote:
        monkeypatch.setattr("muniment.sandbox.fence.pool._SHARED", zygote)
        how = muniment.lines("remember", FACT)[1]
        assert re.search(r"enforcement partial \(without .*seccomp; see muniment doctor\)", how)
        document = muniment.document("remember", FACT)
        assert (document["enforcement"], document["missing_layers"][-1]) == ("partial", "seccomp")
        assert muniment.failure("remember", FACT, "--policy", "hardened") == "confinement_unavailable"


def test_a_dry_run_says_would_and_a_run_tells_what_it_did_besides(muniment, roots, monkeypatch):
    index = put(roots["user"], "MEMORY.md", "# Mine\nwritten by hand\n")
    assert muniment.lines("remember", FACT, "--dry-run")[0].startswith("would be saved (new): user/")
    assert list(roots["user"].iterdir()) == [index]
    put(roots["user"], "a.md", "The user likes tea\n")
    edit = call("edit", path="user/a.md", old_string="tea\n", new_string=f"tea\n{FACT}\n")
    scripted(monkeypatch, calls(edit), say("x"))
    saved, *_, note = muniment.lines("remember", FACT)
    assert saved.startswith("saved (changed): user/a.md")
    assert note.startswith("note: user/MEMORY.md was not ours")


def test_there_is_one_document_with_every_key_also_on_failure(muniment, home, monkeypatch):
    done = muniment.document("remember", FACT)
    assert (done["status"], done["error"]) == ("completed", None)
    (home / "config.toml").write_text("colour = 1\n")
    unusable = muniment.document("remember", FACT, code=1)
    (home / "config.toml").unlink()
    scripted(monkeypatch, say("No."))
    failed = muniment.document("remember", FACT, "--on-model-failure=fail", code=1)
    assert (set(unusable), set(failed), failed["status"]) == (set(done), set(done), "failed")
    codes = [each["error"]["code"] for each in (unusable, failed)]
    assert codes == ["config_invalid", "remember_no_update"]


def test_a_failure_is_one_line_with_its_code_on_standard_error(muniment):
    for line in (
        *("invalid_scope --scope team", "invalid_scope --root team=/tmp", "policy_invalid --policy absent"),
        *("config_invalid --symlinks follow", "config_invalid --root nothing"),
        "invalid_context_mode --context all",
    ):
        code, *arguments = line.split()
        done = muniment("remember", FACT, *arguments)
        assert (done.exit_code, done.stdout) == (1, ""), arguments
        assert re.fullmatch(rf"not saved: .*\[{code}\]\n", done.stderr), arguments


def test_a_command_line_that_means_nothing_is_exit_2_and_says_what_it_lacks(muniment):
    for row in (
        *("remember a b", "remember a --nope", "nope", "show", "serve --port 70000", "policy lint"),
        *("policy explain strict read -x.md", "policy sign strict", "erase --verify - --yes"),
        *("erase", "erase user/a.md --verify -"),
        *("recall | say what to recall", "recall \t | say what to recall", "recall x --limit=0 | --limit"),
        *("recall x --hook | from standard input", "recall --hook --json | from standard input"),
        "doctor --model rules --policy strict | examine a model without it",
        *("conformance --target elsewhere | is no target", "conformance --peer mcp= | is no target"),
        "conformance --peer muniment | is named twice",
        *("conformance --class nonsense | there is no class", "conformance --case x | there is no case"),
        "conformance --jobs 0 | Invalid value for '--jobs'",
    ):
        line, _, told = row.partition(" | ")
        done = muniment(*line.split(" "), bound=False)
        assert (done.exit_code, done.stdout) == (2, ""), row
        assert told in " ".join(done.stderr.split()), row


def test_version_and_help(muniment):
    assert muniment("--version", bound=False).stdout.startswith("muniment 0.")
    policy = "lint explain diff test prove show lock sign verify"
    for line, names in (("--help", "remember ls show index tool"), ("policy --help", policy)):
        shown = " ".join(muniment.lines(*line.split(), bound=False))
        assert all(f" {name} " in shown for name in names.split())


def test_standard_input_that_is_no_fact_is_told_and_never_cut(muniment, roots):
    for stdin, words in (
        *((b"", "empty"), (b"\xff\xfe", "not UTF-8"), (b"x" * (MAX_FACT_BYTES + 1), f"{MAX_FACT_BYTES}")),
        (b"the first half" + b" " * (2 * MAX_FACT_BYTES) + b"the second half", "too long"),
        ("é".encode() * MAX_FACT_BYTES + b"x", "too long"),
    ):
        (line,) = muniment.lines("remember", "-", stdin=stdin, code=1)
        assert (words in line, line.endswith("[invalid_content]")) == (True, True)
    assert list(roots["user"].iterdir()) == []


def test_ctrl_c_is_exit_130_with_nothing_written(muniment, tmp_path, monkeypatch):
    def cancel(_request):
        signal.raise_signal(signal.SIGINT)
        return WRITES[0]

    def memory():
        """Everything but the state, which records how a task ended."""
        return {path: seen for path, seen in photograph(tmp_path).items() if "/home/state" not in path}

    muniment("remember", FACT, "--dry-run")
    before = memory()
    scripted(monkeypatch, cancel)
    assert muniment.lines("remember", FACT, code=130)[0].startswith("cancelled: ")
    scripted(monkeypatch, cancel)
    assert muniment.document("remember", FACT, code=130)["status"] == "cancelled"
    monkeypatch.setattr(command, "_read_fact", Mock(side_effect=KeyboardInterrupt))
    assert muniment.lines("remember", "-", code=130) == ["cancelled: nothing was written [cancelled]"]
    assert muniment.document("remember", "-", code=130)["status"] == "cancelled"
    assert memory() == before
    assert muniment("history").stdout == "nothing was committed here yet\n"


def test_no_model_or_setting_reaches_a_terminal_raw(muniment, roots, home, tmp_path, monkeypatch):
    scripted(monkeypatch, GONE)
    (failed,) = muniment.lines("remember", FACT, "--on-model-failure=fail", code=1)
    assert failed.startswith("not saved: the model failed; nothing was written")
    told = " ".join(muniment.lines("remember", FACT))
    assert "note: the model scripted failed: the model failed; the rules stored the fact" in told
    for name in ("remember x", "ls", "tool"):
        told += " ".join(muniment.lines(*name.split(), "--root=us\x1b[2J\u202eer=/tmp", code=1))
    told += muniment("ls", f"--workspace={tmp_path}/\x1b[2J", bound=False).output
    assert not {"\x1b", "\u202e"} & set(failed + told)
    with api.open(tmp_path, home=home, roots=roots) as memory:
        result = replace(memory.remember(f"{FACT}s"), decided_by="m\nsaved (new): \x1b[2J\ue000")
    assert list(command._lines(result))[-1].startswith("  m saved (new): [2J\\u{e000}, ")


def test_progress_is_for_terminals_and_names_no_tool_that_there_is_not(monkeypatch, capsys):
    shown, said = [], []
    for is_terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda is_terminal=is_terminal: is_terminal)
        with command._progress() as observe:
            observe(ToolDecision(1, "\x1b[2Jgrep", Outcome("allow", None, CANARY)))
        shown.append(capsys.readouterr().err)
    assert (shown[0], bool(shown[1]), CANARY in shown[1]) == ("", True, False)
    for tool in ("\x1b[2Jgrep" + CANARY, "grep"):
        command._telling(said.append)(ToolDecision(2, tool, Outcome("deny", "refused", CANARY)))
    assert said == ["turn 2: unknown tool deny", "turn 2: grep deny"]


def test_events_go_to_standard_error_where_a_level_is_named_and_nowhere_otherwise(muniment):
    for level in ("INFO", "info"):
        record = json.loads(muniment("remember", FACT, MUNIMENT_LOG=level).stderr.splitlines()[-1])
        assert (record["event"], record["status"]) == ("remember_ended", "completed")
    for level in ("", "LOUD"):
        assert muniment("remember", FACT, MUNIMENT_LOG=level).stderr == ""


# -- language models -----------------------------------------------------------------------------------


key = pytest.fixture(lambda tmp_path: str(put(tmp_path, "key", f"{CANARY}\n")))


def test_a_language_model_is_asked_and_named(muniment, roots, monkeypatch, key):
    opened = serve(monkeypatch, *WRITES)
    terms = ("--model=org/m", LLM[1], f"--api-key-file={key}", "--protocol=json", "--detail")
    saved, how, *detail = muniment.lines("remember", FACT, *terms)
    assert (saved, "Saved." in " ".join(detail)) == ("saved (new): user/a.md", True)
    assert how.startswith("  org/m, 2 turns, ")
    assert '"decided_by": "org/m"' in (roots["user"] / "a.md").read_text()
    (model,) = opened
    assert (model.base_url, model.api_key, model.protocol, model.closed) == (URL, CANARY, "json", 1)


def test_a_key_that_was_read_is_in_no_environment_nor_printed_or_logged(muniment, monkeypatch, key):
    seen = []

    def look(_request):
        seen.append(dict(os.environ))
        return say("Done.")

    opened = serve(monkeypatch, look)
    scripted(monkeypatch, look)
    for terms in ((), LLM):
        muniment("remember", FACT, *terms, MUNIMENT_API_KEY=CANARY)
    assert [CANARY in repr(each) for each in seen] == [False, False]
    assert all("MUNIMENT_HOME" in each for each in seen)
    assert [model.api_key for model in opened] == [CANARY]
    for steps in (WRITES, [GONE]):
        for flags, source in ((), {"MUNIMENT_API_KEY": CANARY}), (["--json"], {"MUNIMENT_API_KEY_FILE": key}):
            opened = serve(monkeypatch, *steps)
            done = muniment("remember", FACT, *LLM, *flags, MUNIMENT_LOG="DEBUG", **source)
            assert (opened[0].api_key, "remember_ended" in done.stderr) == (CANARY, True)
            assert CANARY not in done.output + done.stderr


UNUSED = {"--base-url": URL, "--api-key-file": "/key", "--protocol": "json"}


def test_a_model_that_cannot_be_used_is_one_line_and_creates_nothing(muniment, home, roots, monkeypatch):
    opened = serve(monkeypatch)
    path, llm = "take the path of a file", " ".join(LLM)
    for words, arguments, environment in (
        ("say where one answers: --base-url URL, such as http://127.0.0.1:8080/v1", "--model=m", {}),
        ("invalid model name: use 1 to 200 printable", f"--model=m\x1b[2J {LLM[1]}", {}),
        ("auto, tools, json, text or decide", f"{llm} --protocol=xml", {}),
        *((f"{flag} is for a language model", f"{flag}={value}", {}) for flag, value in UNUSED.items()),
        ("--protocol is for a language model", "--model=rules --protocol=json", {}),
        *(("--base-url URL", "", {"MUNIMENT_MODEL": "m"}), (path, f"{llm} --api-key-file={CANARY}", {})),
        ("MUNIMENT_API_KEY holds no key", llm, {"MUNIMENT_API_KEY": f"{CANARY} x"}),
        (path, llm, {"MUNIMENT_API_KEY_FILE": CANARY}),
        ("the key file /dev/null is empty", f"{llm} --api-key-file=/dev/null", {}),
    ):
        done = muniment("remember", "-", *arguments.split(), stdin=CANARY, **environment)
        assert (done.exit_code, done.stdout) == (1, "")
        assert re.fullmatch(rf"not saved: .*{re.escape(words)}.* \[config_invalid\]\n", done.stderr)
        assert [part for part in (CANARY, "\x1b") if part in done.stderr] == []
    told = muniment.document("remember", FACT, *arguments.split(), code=1, **environment)
    assert (told["error"]["code"], told["decided_by"]) == ("config_invalid", None)
    assert (home.exists(), opened) == (False, [])
    monkeypatch.undo()
    for url in ("http://127.0.0.1:1/chat/completions", "127.0.0.1:1", "ftp://127.0.0.1/v1"):
        (told,) = muniment.lines("remember", FACT, "--model=m", f"--base-url={url}", code=1)
        assert re.fullmatch(r"not saved: the base URL .*\[config_invalid\]", told)
    assert list(roots["user"].iterdir()) == []


def test_a_root_with_the_key_file_is_bound_by_no_command_and_looking_needs_no_server(muniment, roots):
    unusable = {"MUNIMENT_MODEL": "m", "MUNIMENT_API_KEY": "no key", "MUNIMENT_API_KEY_FILE": "/nowhere"}
    for line in ("ls", "index rebuild"):
        assert muniment(*line.split(), **unusable).exit_code == 0
    key = put(roots["user"], "key.md", CANARY)
    for line in ("remember x", "ls", "index verify"):
        (told,) = muniment.lines(*line.split(), MUNIMENT_API_KEY_FILE=str(key), code=1)
        assert f"user: its root lies around {key}; bind a directory apart from it" in told
        assert CANARY not in told


# -- ls, show, index -----------------------------------------------------------------------------------

EVIL = "\x1b]0;owned\x07\x9b2J\u202etxt.md"
FORGED = "user/forged.md Forged"


@pytest.fixture
def evil(roots):
    """A memory in which names and texts hold what terminals act on."""
    put(roots["user"], "good.md", "---\nname: Good\ntype: user\n---\nbody \x1b[2J\x9b\u202e\n")
    put(roots["user"], "title.md", '---\nname: "a\\x1b[2Jb\u202e"\n---\nx\n')
    put(roots["user"], "let-pass.md", "---\nname: a\ue000b\n---\nno gate holds it back\n")
    put(roots["user"], EVIL, "x")
    put(roots["user"], os.fsdecode(b"latin-\xe9.md"), "x")
    return roots


@pytest.mark.threat("T-LOG-01", control="visible")
def test_no_name_or_title_reaches_a_terminal_raw_or_forges_a_line(muniment, evil):
    for arguments in (["ls"], ["ls", "user"], ["index", "verify"], ["index", "rebuild"], ["ls", EVIL]):
        for flags in ([], ["--json"]):
            done = muniment(*arguments, *flags)
            assert not set("\x1b\x07\x9b\u202e\udce9\ue000") & set(done.output)
            assert not flags or json.loads(done.stdout)
    put(evil["project"], "a.md", f'---\nname: "Real\\n  {FORGED}\\r  {FORGED}"\n---\nx\n')
    put(evil["project"], "b.md", f"---\nname: |\n  Real\n  {FORGED}\n---\nx\n")
    real = f"  project/a.md  Real {FORGED} {FORGED}", f"  project/b.md  Real {FORGED}"
    assert muniment.lines("ls", "project") == ["project: 2 entries", *real]


@pytest.mark.usefixtures("evil")
def test_ls_lists_entries_and_says_what_it_passed_over(muniment, roots):
    listed = muniment.lines("ls")
    held = ["  user/good.md  held back (ansi)", "  user/title.md  held back (bidi)"]
    assert listed[:4] == ["user: 3 entries", held[0], "  user/let-pass.md  a\\u{e000}b", held[1]]
    assert sum(line.startswith("  passed over: user/") for line in listed) == 2
    assert listed[-1] == "project: 0 entries"
    document = muniment.document("ls")
    entries = [(item["path"], item["held"]) for item in document["entries"]]
    assert entries == [("user/good.md", "ansi"), ("user/let-pass.md", None), ("user/title.md", "bidi")]
    assert (len(document["odd"]), document["complete"]) == (2, True)
    for path in ("a.md", "top/b.md", "topic/b.md"):
        put(roots["project"], path)
    for asked, path in (("topic/", "topic/b.md"), ("topic/b.md", "topic/b.md"), ("top", "top/b.md")):
        assert muniment.lines("ls", f"project/{asked}") == ["project: 1 entry", f"  project/{path}  b"]
    assert "user" not in muniment("ls", "project").stdout
    assert muniment("ls", "/").exit_code == 1
    told = "not listed: nothing is remembered at user/nope [not_found]"
    assert muniment.lines("ls", "user/nope", code=1) == [told]


def test_no_note_breaks_its_line_and_what_cannot_be_read_is_listed_as_such(muniment, monkeypatch):
    for line_break in "\n\r\x85\u2028":
        text = f"a{line_break}{FORGED}"
        rest = dict.fromkeys(("description", "type", "expires", "ends", "held"))
        entries = (
            SimpleNamespace(rel="a.md", name=text, readable=True, note=text, size=1, trust="agent", **rest),
            SimpleNamespace(
                rel="b.md", name="\x1b[2J", readable=False, note="", size=1, trust="agent", **rest
            ),
        )
        odd = (SimpleNamespace(path="c", reason=text),)
        found = Mock(entries=Mock(return_value=entries), odd=Mock(return_value=odd), complete=False)
        monkeypatch.setattr(visibility, "view_of", Mock(return_value=found))
        monkeypatch.setattr(owner, "view_of", Mock(return_value=found))
        monkeypatch.setattr(owner, "verify", Mock(return_value=IndexCheck((text,), (text,))))
        first, second = f"  user/a.md  a {FORGED} (a {FORGED})", "  user/b.md  cannot be read"
        passed = f"  passed over: user/c (a {FORGED})", "  user could not be read completely"
        assert muniment.lines("ls", "user")[1:] == [first, second, *passed]
        notes = [f"note: {scope}/c: a {FORGED}" for scope in ("user", "project")] + 2 * [f"note: a {FORGED}"]
        assert muniment.lines("index", "verify", code=1) == notes + 2 * [f"a {FORGED}"]


def test_show_prints_the_bytes_into_a_pipe_and_nothing_raw_on_a_terminal(muniment, evil, request):
    text = put(evil["user"], "no-newline.md", "x") and (evil["user"] / "good.md").read_text()
    assert muniment("show", "user/good.md").stdout_bytes.decode() == text
    assert muniment.document("show", "user/good.md") == {"path": "user/good.md", "content": text}
    request.getfixturevalue("terminal")
    shown = muniment("show", "user/good.md").stdout
    assert (shown.endswith("\n"), set("\x1b\x9b\u202e") & set(shown)) == (True, set())
    assert muniment("show", "user/no-newline.md").stdout == "x\n"


def test_show_leaves_the_memory_for_nobody(muniment, roots, tmp_path):
    (roots["user"] / "link.md").symlink_to(tmp_path / "outside" / "secret.md")
    put(roots["user"], "bytes.md", b"\xff")
    out = "user/../outside/secret.md", "/etc/passwd", "user/link.md"
    for path, code in (
        *((path, "path_escape") for path in out),
        *(("user/absent.md", "not_found"), ("", "bad_name"), ("team/a.md", "refused")),
        *(("user", "not_a_file"), ("user/bytes.md", "not_text")),
    ):
        told = muniment("show", path)
        assert (told.exit_code, f"[{code}]" in told.stderr, CANARY in told.output) == (1, True, False), path
    assert muniment.failure("show", path) == code


def test_indexes_are_verified_and_rebuilt(muniment, roots):
    put(roots["user"], "a.md", "x\n")
    (wrong,) = muniment.lines("index", "verify", code=1)
    assert wrong == "user/MEMORY.md is missing; run: muniment index rebuild"
    assert muniment.document("index", "verify", code=1)["correct"] is False
    assert muniment.lines("index", "rebuild") == ["the indexes are rebuilt"]
    assert muniment.lines("index", "verify") == ["the indexes are correct"]
    assert muniment.document("index", "verify")["correct"] is True
    put(roots["user"], EVIL, "x")
    put(roots["project"], "MEMORY.md", "# Mine\nby hand\n")
    assert "note: project/MEMORY.md was not ours" in muniment("index", "rebuild").stderr
    verified = muniment("index", "verify")
    assert (verified.exit_code, verified.stderr.count("note: user/")) == (0, 1)
    (roots["user"] / "MEMORY.md").unlink()
    (roots["user"] / "MEMORY.md").mkdir()
    assert "user/MEMORY.md cannot be rebuilt" in "".join(muniment.lines("index", "rebuild", code=1))


def test_what_cannot_be_opened_is_told(muniment, roots):
    roots["user"].chmod(0o777)
    for line in ("ls", "show user/a.md", "index verify", "index rebuild"):
        (told,) = muniment.lines(*line.split(), code=1)
        assert re.search(r"chmod go-w.*\[managed_memory_unavailable\]$", told)


# -- tool ----------------------------------------------------------------------------------------------


def ask(tool, **arguments):
    return json.dumps({"tool": tool, "args": arguments}) + "\n"


def answers(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_tool_answers_a_line_with_a_line_and_commits_only_when_asked(muniment, roots):
    lines = ask("write_file", path="user/a.md", content="x\n") + "\n" + ask("ls", path="user")
    first, second = answers(muniment("tool", stdin=lines))
    assert set(first) == set(second) == {"verdict", "code", "text"}
    assert second["text"] == "a.md (2 bytes)\n[1 in all]"
    assert list(roots["user"].iterdir()) == []
    done = muniment("tool", "--commit", stdin=lines)
    assert (done.exit_code, len(answers(done)), done.stderr) == (0, 2, "committed: user/a.md\n")
    assert (roots["user"] / "a.md").read_text() == "x\n"


def test_what_is_no_request_is_answered_and_the_next_one_heard(muniment):
    bad = ("{", "[]", "null", '"ls"', '{"tool": "ls"}', '{"tool": "ls", "args": {}, "x": 1}')
    bad += ("[" * 100_000, "1" * 5000)
    unknown = [json.dumps({"tool": tool, "args": None}) for tool in (None, [], {}, 7, "bash")]
    done = muniment("tool", stdin="\n".join((*bad, *unknown, ask("ls", path=""))))
    codes = [each["code"] for each in answers(done)]
    assert codes == ["bad_arguments"] * len(bad) + ["unknown_tool"] * len(unknown) + [None]


def test_tool_fails_for_a_line_without_end_and_an_escape(muniment, roots, home, monkeypatch):
    escape = ask("write_file", path="user/a.md", content="x")
    escape += ask("edit", path="/etc/x", old_string="a", new_string="b")
    done = muniment("tool", "--commit", stdin=escape)
    assert (done.exit_code, "[remember_path_escape]" in done.stderr) == (1, True)
    assert list(roots["user"].iterdir()) == []
    assert "[invalid_scope]" in muniment("tool", bound=False, stdin="").stderr
    assert "[confinement_unavailable]" in muniment.lines("tool", "--in-process", stdin="", code=1)[0]
    look = rule("allow", "look", ["list", "read"], ["/user/**/*.md"])
    write(home / "policies" / "own.toml", body=look, extends=["strict"])
    done = muniment("tool", "--policy=own", stdin=ask("write_file", path="user/a.md", content="x\n"))
    assert answers(done)[0]["code"] == "refused"
    monkeypatch.setattr(command, "MAX_LINE_BYTES", 1000)
    done = muniment("tool", "--commit", stdin=ask("ls", path="x" * 2000) + ask("ls", path=""))
    assert (done.exit_code, [each["code"] for each in answers(done)]) == (1, ["too_large"])


def test_links_are_resolved_if_that_is_asked_for(muniment, roots, monkeypatch):
    (roots["user"] / "topic").mkdir()
    (roots["user"] / "t").symlink_to("topic")
    request = ask("write_file", path="user/t/new.md", content="new\n")
    assert answers(muniment("tool", stdin=request))[0]["code"] == "path_escape"
    done = muniment("tool", "--symlinks", "beneath", "--commit", stdin=request)
    assert answers(done)[0]["text"] == "created user/topic/new.md (4 bytes); user/t/new.md leads there"
    assert done.stderr == "committed: user/topic/new.md\n"
    scripted(monkeypatch, calls(call("write_file", path="user/t/more.md", content=f"{FACT}\n")), say("x"))
    document = muniment.document("remember", FACT, "--symlinks", "beneath")
    assert document["files_touched"] == ["user/topic/prefers-dark-mode.md"]


# -- where the program starts --------------------------------------------------------------------------


@pytest.fixture
def main(monkeypatch):
    def main(body, line):
        monkeypatch.setattr("muniment.cli.app.app", body)
        monkeypatch.setattr(sys, "argv", ["muniment", *line.split()])
        entry.main()

    return main


def test_the_zygote_starts_early_only_where_an_agent_will_run(main, monkeypatch):
    zygote = Mock()
    zygote.start.side_effect = WorkerLost("no; the command itself will say so")
    monkeypatch.setattr("muniment.sandbox.fence.pool.shared_zygote", lambda: zygote)
    for line in ("tool --in-process", "remember --help", "ls", ""):
        main(lambda: None, line)
    assert not zygote.start.called
    for line in ("remember x", "tool", "acp"):
        main(lambda: None, line)
    assert zygote.start.call_count == 3


def test_ctrl_c_is_exit_130_anywhere_and_no_character_too_much_for_a_stream(main, monkeypatch, capsys):
    with pytest.raises(SystemExit) as caught:
        main(lambda: signal.raise_signal(signal.SIGINT), "ls")
    assert caught.value.code == 130
    assert "cancelled" in capsys.readouterr().err
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    main(lambda: sys.stdout.write("é 项\n") and sys.stdout.flush(), "ls")
    assert raw.getvalue() == b"\xe9 \\u9879\n"
