"""The commands, in this process: exit codes, messages that a person can act on, one document for machines."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from kit.confine.probe import SERVICES
from kit.memories import CANARY, IN_A_WORKER, make_roots, photograph, put
from kit.served import URL, serve
from muniment import api
from muniment.agent import filing
from muniment.agent.model import ModelError
from muniment.agent.runner import ToolDecision
from muniment.cli import entry
from muniment.cli import remember as command
from muniment.cli.app import app
from muniment.confine import pool
from muniment.confine.pool import Zygote, import_directories
from muniment.errors import WorkerLost
from muniment.names import MAX_FACT_BYTES
from muniment.store.upkeep import IndexCheck
from muniment.testing.minds import ScriptedModel, call, calls, say
from muniment.tools.calls import Outcome

FACT = "The user prefers dark mode"


@pytest.fixture
def roots(tmp_path):
    return make_roots(tmp_path)


@pytest.fixture
def muniment(tmp_path, roots):
    """Runs a command over the roots."""

    def run(*arguments, stdin=None, bound=True, **environment):
        workspace = tmp_path / "workspace"
        workspace.mkdir(exist_ok=True)
        places = [f"--root={scope}={path}" for scope, path in roots.items()] if bound else []
        if arguments[0] not in {"tool", "--version", "--help"} and "--workspace" not in arguments[-1]:
            places.append(f"--workspace={workspace}")
        env = {"MUNIMENT_HOME": str(tmp_path / "home"), **environment}
        return CliRunner().invoke(app, [*arguments, *places], input=stdin, env=env)

    return run


def scripted(monkeypatch, *steps):
    monkeypatch.setattr(filing, "RuleWriter", lambda: ScriptedModel(steps))


def test_a_fact_is_saved_in_two_lines(muniment, roots):
    done = muniment("remember", FACT)
    assert done.exit_code == 0
    saved, how = done.stdout.splitlines()
    path = saved.removeprefix("saved (new): user/")
    assert FACT in (roots["user"] / path).read_text()
    assert how.startswith("  rules, ")
    assert f"enforcement {IN_A_WORKER}" in how
    again = muniment("remember", FACT)
    assert (again.exit_code, again.stdout) == (0, f"already known: user/{path}\n")


def test_a_run_that_the_kernel_holds_less_says_what_was_missing(muniment, monkeypatch):
    with Zygote("claiming_service:serve", directories=(*import_directories(), SERVICES)) as zygote:
        monkeypatch.setattr(pool._SHARED, "zygote", zygote)
        how = muniment("remember", FACT).stdout.splitlines()[1]
        assert "enforcement partial (without " in how
        assert "seccomp; see muniment doctor)" in how
        document = json.loads(muniment("remember", FACT, "--json").stdout)
        assert (document["enforcement"], document["missing_layers"][-1]) == ("partial", "seccomp")
        refused = muniment("remember", FACT, "--policy", "hardened", "--json")
        assert refused.exit_code == 1
        assert json.loads(refused.stdout)["error"]["code"] == "confinement_unavailable"


def test_a_dry_run_says_would(muniment, roots):
    done = muniment("remember", FACT, "--dry-run")
    assert done.exit_code == 0
    assert done.stdout.startswith("would be saved (new): user/")
    assert list(roots["user"].iterdir()) == []


def test_a_changed_file_is_called_changed(muniment, roots, monkeypatch):
    put(roots["user"], "a.md", "The user likes tea\n")
    edit = call("edit", path="user/a.md", old_string="tea\n", new_string=f"tea\n{FACT}\n")
    scripted(monkeypatch, calls(edit), say("x"))
    assert muniment("remember", FACT).stdout.startswith("saved (changed): user/a.md")


def test_one_document_also_on_failure(muniment, monkeypatch):
    done = json.loads(muniment("remember", FACT, "--json").stdout)
    assert (done["status"], done["error"]) == ("completed", None)
    scripted(monkeypatch, say("No."))
    failed = muniment("remember", FACT, "--json", "--on-model-failure=fail")
    document = json.loads(failed.stdout)
    assert failed.exit_code == 1
    assert (document["status"], document["error"]["code"]) == ("failed", "remember_no_update")
    unusable = muniment("remember", FACT, "--json", "--policy", "absent")
    assert unusable.exit_code == 1
    assert json.loads(unusable.stdout)["error"]["code"] == "policy_invalid"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([FACT, "--scope", "team"], "invalid_scope"),
        ([FACT, "--context", "all"], "invalid_context_mode"),
        ([" "], "invalid_content"),
        ([FACT, "--policy", "absent"], "policy_invalid"),
        ([FACT, "--symlinks", "follow"], "config_invalid"),
        ([FACT, "--root", "nothing"], "config_invalid"),
        ([FACT, "--root", "team=/tmp"], "invalid_scope"),
    ],
)
def test_failure_is_one_line_with_its_code_on_standard_error(muniment, arguments, code):
    done = muniment("remember", *arguments)
    assert done.exit_code == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("not saved: ")
    assert line.endswith(f"[{code}]")


@pytest.mark.parametrize(
    "arguments",
    [["remember"], ["remember", "a", "b"], ["remember", FACT, "--nope"], ["nope"], ["show"], ["index"]],
)
def test_wrong_usage_is_exit_2(muniment, arguments):
    assert muniment(*arguments, bound=False).exit_code == 2


def test_version_and_help(muniment):
    assert muniment("--version", bound=False).stdout.startswith("muniment 0.")
    shown = muniment("--help", bound=False)
    assert shown.exit_code == 0
    for name in ("remember", "ls", "show", "index", "tool"):
        assert name in shown.stdout


def test_a_dash_reads_standard_input(muniment, roots):
    done = muniment("remember", "-", stdin=f"  {FACT}\n")
    assert done.exit_code == 0
    (path,) = roots["user"].rglob("*/*.md")
    assert FACT in path.read_text()


@pytest.mark.parametrize(
    ("stdin", "words"),
    [
        (b"", "empty"),
        (b"\xff\xfe", "not UTF-8"),
        (b"x" * (MAX_FACT_BYTES + 1), f"{MAX_FACT_BYTES}"),
        (b"x" * 10_000_000, "too long"),
        (b"the first half" + b" " * (2 * MAX_FACT_BYTES) + b"the second half", "too long"),
        ("é".encode() * MAX_FACT_BYTES + b"x", "too long"),
    ],
)
def test_standard_input_that_is_no_fact_is_told_and_never_cut(muniment, roots, stdin, words):
    done = muniment("remember", "-", stdin=stdin)
    assert done.exit_code == 1
    assert words in done.stderr
    assert "[invalid_content]" in done.stderr
    assert list(roots["user"].iterdir()) == []


def test_a_cancelled_job_exits_130_and_writes_nothing(muniment, tmp_path, monkeypatch):
    def cancel(_request):
        signal.raise_signal(signal.SIGINT)
        return calls(call("write_file", path="user/a.md", content="x"))

    def memory():
        """Everything but the state, which records how a task ended."""
        state = tmp_path / "home" / "state"
        kept = photograph(tmp_path)
        return {path: kept[path] for path in kept if state not in (Path(path), *Path(path).parents)}

    muniment("remember", FACT, "--dry-run")
    before = memory()
    for flags in ([], ["--json"]):
        scripted(monkeypatch, cancel)
        done = muniment("remember", FACT, *flags)
        assert done.exit_code == 130
        if flags:
            assert json.loads(done.stdout)["status"] == "cancelled"
        else:
            assert done.stderr.startswith("cancelled: ")
    assert memory() == before
    assert muniment("history").stdout == "nothing was committed here yet\n"


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_an_interrupt_while_input_is_awaited_is_a_cancel(muniment, roots, monkeypatch, flags):
    def interrupted(_argument):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_read_fact", interrupted)
    done = muniment("remember", "-", *flags)
    assert done.exit_code == 130
    if flags:
        assert json.loads(done.stdout)["status"] == "cancelled"
    else:
        assert done.stderr == "cancelled: nothing was written [cancelled]\n"
    assert list(roots["user"].iterdir()) == []


def test_a_note_about_a_hand_written_index_is_shown(muniment, roots):
    put(roots["user"], "MEMORY.md", "# Mine\nwritten by hand\n")
    done = muniment("remember", FACT)
    assert done.exit_code == 0
    assert done.stderr.startswith("note: user/MEMORY.md was not ours")


def test_nothing_that_a_model_says_reaches_a_terminal_raw(muniment, monkeypatch):
    def fail(_request):
        raise ModelError("\x1b[2J\u202egone")

    scripted(monkeypatch, fail)
    done = muniment("remember", FACT, "--on-model-failure=fail")
    assert "\x1b" not in done.output
    assert "not saved: the model failed; nothing was written" in done.stderr
    followed = muniment("remember", FACT)
    assert followed.exit_code == 0
    assert "\x1b" not in followed.output
    assert "note: the model scripted failed: the model failed; the rules filed the fact" in followed.stderr


@pytest.mark.parametrize("arguments", [["remember", FACT], ["ls"], ["tool"]])
def test_nothing_of_a_configuration_reaches_a_terminal_raw(muniment, arguments):
    done = muniment(*arguments, "--root=us\x1b[2J\u202eer=/tmp")
    assert done.exit_code == 1
    assert "\x1b" not in done.output
    assert "\u202e" not in done.output


def test_a_workspace_that_is_missing_is_named_without_harm(muniment, tmp_path):
    done = muniment("ls", f"--workspace={tmp_path}/\x1b[2J", bound=False)
    assert "\x1b" not in done.output


def test_on_a_terminal_progress_is_shown_on_standard_error(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with command._progress() as observe:
        observe(ToolDecision(1, "\x1b[2Jgrep", Outcome("allow", None, CANARY)))
    assert CANARY not in stream.getvalue()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with command._progress() as observe:
        observe(ToolDecision(1, "grep", Outcome("allow", None, "")))


def test_progress_names_a_tool_that_there_is_and_no_other():
    said = []
    for tool in ("\x1b[2Jgrep" + CANARY, "grep"):
        command._telling(said.append)(ToolDecision(2, tool, Outcome("deny", "refused", CANARY)))
    assert said == ["turn 2: unknown tool deny", "turn 2: grep deny"]


# -- language models -----------------------------------------------------------------------------------

WRITES = (calls(call("write_file", path="user/a.md", content=f"{FACT}\n")), say("Saved."))


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "key"
    path.write_text(f"{CANARY}\n")
    return path


def test_a_language_model_is_asked_and_named(muniment, roots, monkeypatch, key):
    opened = serve(monkeypatch, *WRITES)
    done = muniment(
        "remember", FACT, "--model=org/m", f"--base-url={URL}", f"--api-key-file={key}", "--protocol=json"
    )
    assert (done.exit_code, done.stderr) == (0, "")
    saved, how = done.stdout.splitlines()
    assert saved == "saved (new): user/a.md"
    assert how.startswith("  org/m, 2 turns, ")
    assert '"decided_by": "org/m"' in (roots["user"] / "a.md").read_text()
    (model,) = opened
    assert (model.base_url, model.api_key, model.protocol, model.closed) == (URL, CANARY, "json", 1)


@pytest.mark.parametrize("model", ["rules", "m"])
def test_once_it_is_read_the_key_is_in_no_environment_that_a_process_could_inherit(
    muniment, monkeypatch, model
):
    seen = []

    def look(_request):
        seen.append(dict(os.environ))
        return say("Done.")

    opened = serve(monkeypatch, look)
    scripted(monkeypatch, look)
    terms = [] if model == "rules" else ["--model=m", f"--base-url={URL}"]
    muniment("remember", FACT, *terms, MUNIMENT_API_KEY=CANARY)
    assert len(seen) == 1
    assert CANARY not in repr(seen)
    assert "MUNIMENT_HOME" in seen[0]
    assert [model.api_key for model in opened] == ([] if model == "rules" else [CANARY])


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_the_key_is_in_nothing_that_is_printed_or_logged(muniment, monkeypatch, key, flags):
    def fail(_request):
        raise ModelError("no answer")

    for steps in (WRITES, [fail]):
        serve(monkeypatch, *steps)
        for source in ({"MUNIMENT_API_KEY": CANARY}, {"MUNIMENT_API_KEY_FILE": str(key)}):
            done = muniment(
                "remember", FACT, "--model=m", f"--base-url={URL}", *flags, MUNIMENT_LOG="DEBUG", **source
            )
            assert "remember_ended" in done.stderr
            assert CANARY not in done.output + done.stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["--model=m"], {}, "say where one answers: --base-url URL, such as http://127.0.0.1:8080/v1"),
        (["--model=m\x1b[2J", f"--base-url={URL}"], {}, "a model's name has 1 to 200 printable"),
        (["--model=m", f"--base-url={URL}", "--protocol=xml"], {}, "auto, tools, json, text and decide"),
        ([f"--base-url={URL}"], {}, "--base-url is for a language model"),
        (["--protocol=json"], {}, "--protocol is for a language model"),
        (["--api-key-file=/key"], {}, "--api-key-file is for a language model"),
        (["--model=rules", "--protocol=json"], {"MUNIMENT_MODEL": "m"}, "--protocol is for a language model"),
        ([], {"MUNIMENT_MODEL": "m"}, "--base-url URL"),
        (
            ["--model=m", f"--base-url={URL}"],
            {"MUNIMENT_API_KEY": f"{CANARY} x"},
            "MUNIMENT_API_KEY holds no key",
        ),
        (["--model=m", f"--base-url={URL}", f"--api-key-file={CANARY}"], {}, "take the path of a file"),
        (["--model=m", f"--base-url={URL}"], {"MUNIMENT_API_KEY_FILE": CANARY}, "take the path of a file"),
    ],
)
def test_a_model_that_cannot_be_used_is_one_line_and_creates_nothing(
    muniment, tmp_path, monkeypatch, arguments, environment, words
):
    opened = serve(monkeypatch)
    done = muniment("remember", FACT, *arguments, **environment)
    assert (done.exit_code, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("not saved: ")
    assert words in line
    assert line.endswith("[config_invalid]")
    assert CANARY not in line
    assert "\x1b" not in line
    assert not (tmp_path / "home").exists()
    assert opened == []
    document = json.loads(muniment("remember", FACT, "--json", *arguments, **environment).stdout)
    assert document["error"]["code"] == "config_invalid"
    assert document["decided_by"] is None


@pytest.mark.parametrize("command", [["remember", FACT], ["ls"], ["index", "verify"]])
def test_a_root_that_holds_the_key_file_is_bound_by_no_command(muniment, roots, command):
    key = put(roots["user"], "key.md", CANARY)
    done = muniment(*command, MUNIMENT_API_KEY_FILE=str(key))
    assert done.exit_code == 1
    assert f"user: its root lies around {key}; bind a directory apart from it" in done.stderr
    assert CANARY not in done.output + done.stderr


def test_the_memory_can_be_looked_at_without_the_server_of_its_model(muniment):
    unusable = {"MUNIMENT_MODEL": "m", "MUNIMENT_API_KEY": "no key", "MUNIMENT_API_KEY_FILE": "/nowhere"}
    assert muniment("ls", **unusable).exit_code == 0
    assert muniment("index", "rebuild", **unusable).exit_code == 0


def test_the_fact_on_standard_input_is_no_key(muniment, monkeypatch):
    serve(monkeypatch, *WRITES)
    done = muniment(
        "remember", "-", "--model=m", f"--base-url={URL}", "--api-key-file=/dev/null", stdin=CANARY
    )
    assert "the key file /dev/null is empty" in done.stderr


def test_a_models_name_forges_no_line_and_reaches_no_terminal_raw(tmp_path, roots, capsys):
    with api.open(tmp_path, home=tmp_path / "home", roots=roots) as memory:
        result = replace(memory.remember(FACT), decided_by="m\nsaved (new): \x1b[2J\ue000")
    assert command._report(result, as_json=False) == 0
    _, how = capsys.readouterr().out.splitlines()
    assert how.startswith("  m saved (new): [2J\\u{e000}, ")


# -- ls, show, index -----------------------------------------------------------------------------------

EVIL = "\x1b]0;owned\x07\x9b2J\u202etxt.md"


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
@pytest.mark.parametrize("flags", [[], ["--json"]])
@pytest.mark.parametrize(
    "arguments", [["ls"], ["ls", "user"], ["index", "verify"], ["index", "rebuild"], ["ls", EVIL]]
)
@pytest.mark.usefixtures("evil")
def test_no_name_or_title_reaches_a_terminal_raw(muniment, arguments, flags):
    done = muniment(*arguments, *flags)
    for char in "\x1b\x07\x9b\u202e\udce9\ue000":
        assert char not in done.output
    if flags:
        json.loads(done.stdout)


@pytest.mark.usefixtures("evil")
def test_ls_lists_entries_and_says_what_it_passed_over(muniment):
    listed = muniment("ls").stdout.splitlines()
    assert listed[0] == "user: 3 entries"
    assert listed[1:4] == [
        "  user/good.md  held back (ansi)",
        "  user/let-pass.md  a\\u{e000}b",
        "  user/title.md  held back (bidi)",
    ]
    assert sum(line.startswith("  passed over: user/") for line in listed) == 2
    assert listed[-1] == "project: 0 entries"
    document = json.loads(muniment("ls", "--json").stdout)
    assert [(item["path"], item["held"]) for item in document["entries"]] == [
        ("user/good.md", "ansi"),
        ("user/let-pass.md", None),
        ("user/title.md", "bidi"),
    ]
    assert len(document["odd"]) == 2
    assert document["complete"] is True


def test_ls_of_a_directory_lists_what_is_below_it(muniment, roots):
    put(roots["user"], "a.md")
    put(roots["user"], "topic/b.md")
    assert muniment("ls", "user/topic/").stdout == "user: 1 entry\n  user/topic/b.md  b\n"
    assert "project" not in muniment("ls", "user").stdout
    assert muniment("ls", "/").exit_code == 1


@pytest.mark.usefixtures("evil")
def test_ls_of_an_entry_lists_it_and_of_nothing_says_so(muniment):
    assert muniment("ls", "user/good.md").stdout.startswith("user: 1 entry\n  user/good.md  ")
    done = muniment("ls", "user/nope")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "not listed: nothing is remembered at user/nope [not_found]\n"


def test_an_entry_that_cannot_be_read_is_listed_as_such(muniment, monkeypatch):
    from muniment.cli import inspect

    entry_ = SimpleNamespace(rel="a.md", name="\x1b[2J", readable=False, held=None, note="")
    found = SimpleNamespace(entries=lambda: (entry_,), odd=lambda: (), complete=False)
    monkeypatch.setattr(inspect, "view_of", lambda *_, **__: found)
    listed = muniment("ls", "user").stdout
    assert listed == "user: 1 entry\n  user/a.md  cannot be read\n  user could not be read completely\n"


def test_show_prints_the_bytes_into_a_pipe_and_nothing_raw_on_a_terminal(muniment, evil, monkeypatch):
    text = (evil["user"] / "good.md").read_text()
    assert muniment("show", "user/good.md").stdout_bytes.decode() == text
    document = muniment("show", "user/good.md", "--json")
    assert json.loads(document.stdout) == {"path": "user/good.md", "content": text}
    assert document.stdout.isascii()

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    from muniment.cli.inspect import MemoryArguments, show_entry

    for name, end in (("good.md", "\n"), ("no-newline.md", "x\n")):
        put(evil["user"], "no-newline.md", "x")
        screen = Terminal()
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setenv("MUNIMENT_HOME", str(evil["user"].parent / "home"))
        pairs = [f"{scope}={path}" for scope, path in evil.items()]
        assert show_entry(MemoryArguments(evil["user"].parent, None, pairs, json=False), f"user/{name}") == 0
        assert screen.getvalue().endswith(end)
        for char in "\x1b\x9b\u202e":
            assert char not in screen.getvalue()


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("user/absent.md", "not_found"),
        ("user/../outside/secret.md", "path_escape"),
        ("/etc/passwd", "path_escape"),
        ("user/link.md", "path_escape"),
        ("team/a.md", "refused"),
        ("", "bad_name"),
        ("user", "not_a_file"),
        ("user/bytes.md", "not_text"),
    ],
)
def test_show_leaves_the_memory_for_nobody(muniment, roots, tmp_path, path, code):
    (roots["user"] / "link.md").symlink_to(tmp_path / "outside" / "secret.md")
    put(roots["user"], "bytes.md", b"\xff")
    done = muniment("show", path)
    assert done.exit_code == 1
    assert f"[{code}]" in done.stderr
    assert CANARY not in done.output
    document = json.loads(muniment("show", path, "--json").stdout)
    assert document["error"]["code"] == code


def test_indexes_are_verified_and_rebuilt(muniment, roots):
    put(roots["user"], "a.md", "x\n")
    wrong = muniment("index", "verify")
    assert (wrong.exit_code, wrong.stdout) == (1, "")
    assert "user/MEMORY.md is missing; run: muniment index rebuild" in wrong.stderr
    assert json.loads(muniment("index", "verify", "--json").stdout)["correct"] is False
    rebuilt = muniment("index", "rebuild")
    assert (rebuilt.exit_code, rebuilt.stdout) == (0, "the indexes are rebuilt\n")
    assert muniment("index", "verify").stdout == "the indexes are correct\n"
    assert json.loads(muniment("index", "verify", "--json").stdout)["correct"] is True


def test_odd_names_are_told_by_verify_and_a_saved_index_by_rebuild(muniment, evil):
    put(evil["project"], "MEMORY.md", "# Mine\nby hand\n")
    rebuilt = muniment("index", "rebuild")
    assert "note: project/MEMORY.md was not ours" in rebuilt.stderr
    verified = muniment("index", "verify")
    assert verified.exit_code == 0
    assert verified.stderr.count("note: user/") == 2


def test_an_index_that_cannot_be_written_makes_rebuild_fail(muniment, roots):
    (roots["user"] / "MEMORY.md").mkdir()
    done = muniment("index", "rebuild")
    assert done.exit_code == 1
    assert "user/MEMORY.md cannot be rebuilt" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["ls"], ["show", "user/a.md"], ["index", "verify"], ["index", "rebuild"]]
)
def test_what_cannot_be_opened_is_told(muniment, roots, arguments):
    roots["user"].chmod(0o777)
    done = muniment(*arguments)
    assert done.exit_code == 1
    assert "[managed_memory_unavailable]" in done.stderr
    assert "chmod go-w" in done.stderr


# -- tool ----------------------------------------------------------------------------------------------


def ask(*requests):
    return "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in requests)


def request(tool, **arguments):
    return {"tool": tool, "args": arguments}


def test_tool_answers_a_line_with_a_line_and_commits_only_when_asked(muniment, roots):
    lines = ask(request("write_file", path="user/a.md", content="x\n"), "", request("ls", path="user"))
    done = muniment("tool", stdin=lines)
    assert done.exit_code == 0
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [set(answer) for answer in answers] == [{"verdict", "code", "text"}] * 2
    assert answers[1]["text"] == "a.md (2 bytes)\n[1 in all]"
    assert list(roots["user"].iterdir()) == []
    done = muniment("tool", "--commit", stdin=lines)
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == "committed: user/a.md\n"
    assert (roots["user"] / "a.md").read_text() == "x\n"


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "null",
        '"ls"',
        '{"tool": "ls"}',
        '{"tool": "ls", "args": {}, "x": 1}',
        "[" * 100_000,
        "1" * 5000,
    ],
)
def test_what_is_no_request_is_answered_and_the_next_one_heard(muniment, line):
    done = muniment("tool", stdin=ask(line, request("ls", path="")))
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["code"] == "bad_arguments"
    assert second["verdict"] == "allow"


@pytest.mark.parametrize("tool", [None, [], {}, 7, "bash"])
def test_a_tool_that_is_none_is_unknown(muniment, tool):
    done = muniment("tool", stdin=ask({"tool": tool, "args": None}))
    assert json.loads(done.stdout)["code"] == "unknown_tool"


def test_a_line_without_end_ends_the_program(muniment, monkeypatch):
    from muniment.cli import remember as tool

    monkeypatch.setattr(tool, "MAX_LINE_BYTES", 1000)
    done = muniment("tool", "--commit", stdin=ask(request("ls", path="x" * 2000), request("ls", path="")))
    assert done.exit_code == 1
    assert [json.loads(line)["code"] for line in done.stdout.splitlines()] == ["too_large"]


def test_an_escape_makes_the_commit_fail(muniment, roots):
    lines = ask(
        request("write_file", path="user/a.md", content="x"),
        request("edit", path="/etc/x", old_string="a", new_string="b"),
    )
    done = muniment("tool", "--commit", stdin=lines)
    assert done.exit_code == 1
    assert "[remember_path_escape]" in done.stderr
    assert list(roots["user"].iterdir()) == []


def test_tool_takes_a_policy_of_the_home_by_name(muniment, tmp_path):
    (tmp_path / "home" / "policies").mkdir(parents=True)
    (tmp_path / "home" / "policies" / "own.toml").write_text(
        'schema = "muniment-policy/1"\nname = "own"\nextends = ["strict"]\n'
        '[[allow]]\nid = "look"\nverbs = ["list", "read"]\npaths = ["/user/**/*.md"]\n'
    )
    done = muniment("tool", "--policy=own", stdin=ask(request("write_file", path="user/a.md", content="x\n")))
    assert json.loads(done.stdout)["code"] == "refused"


def test_tool_says_why_it_cannot_begin(muniment):
    assert "[invalid_scope]" in muniment("tool", bound=False, stdin="").stderr
    done = muniment("tool", "--in-process", stdin="")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "[confinement_unavailable]" in done.stderr


# -- where the program starts --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "starts"),
    [
        (["remember", "x"], True),
        (["tool"], True),
        (["tool", "--in-process"], False),
        (["remember", "--help"], False),
        (["ls"], False),
        ([], False),
    ],
)
def test_the_zygote_starts_early_only_where_an_agent_will_run(monkeypatch, arguments, starts):
    started = []
    monkeypatch.setattr(
        "muniment.confine.pool.shared_zygote", lambda: SimpleNamespace(start=lambda: started.append(1))
    )
    monkeypatch.setattr("muniment.cli.app.app", lambda: None)
    monkeypatch.setattr(sys, "argv", ["muniment", *arguments])
    entry.main()
    assert bool(started) == starts


def test_a_zygote_that_cannot_start_early_is_told_by_the_command_itself(monkeypatch):
    def fail():
        raise WorkerLost("no")

    monkeypatch.setattr("muniment.confine.pool.shared_zygote", lambda: SimpleNamespace(start=fail))
    entry._start_zygote()


def test_a_keyboard_interrupt_is_exit_130(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("muniment.cli.app.app", interrupted)
    monkeypatch.setattr(sys, "argv", ["muniment", "ls"])
    with pytest.raises(SystemExit) as caught:
        entry.main()
    assert caught.value.code == 130
    assert "cancelled" in capsys.readouterr().err


def test_a_stream_that_cannot_show_a_character_shows_it_escaped(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    monkeypatch.setattr("muniment.cli.app.app", lambda: sys.stdout.write("é 项\n") and sys.stdout.flush())
    monkeypatch.setattr(sys, "argv", ["muniment", "ls"])
    entry.main()
    assert raw.getvalue() == b"\xe9 \\u9879\n"


@pytest.mark.parametrize("level", ["INFO", "info"])
def test_events_go_to_standard_error_where_a_level_is_named(muniment, level):
    done = muniment("remember", FACT, MUNIMENT_LOG=level)
    record = json.loads(done.stderr.splitlines()[-1])
    assert (record["event"], record["status"]) == ("remember_ended", "completed")


@pytest.mark.parametrize("level", ["", "LOUD"])
def test_events_go_nowhere_otherwise(muniment, level):
    assert muniment("remember", FACT, MUNIMENT_LOG=level).stderr == ""


FORGED = "user/forged.md Forged"


@pytest.mark.threat("T-LOG-01", control="visible")
def test_a_line_break_in_a_name_forges_no_line_of_a_listing(muniment, roots):
    put(roots["user"], "a.md", f'---\nname: "Real\\n  {FORGED}\\r  {FORGED}"\n---\nx\n')
    put(roots["user"], "b.md", f"---\nname: |\n  Real\n  {FORGED}\n---\nx\n")
    assert muniment("ls").stdout.splitlines() == [
        "user: 2 entries",
        f"  user/a.md  Real {FORGED} {FORGED}",
        f"  user/b.md  Real {FORGED}",
        "project: 0 entries",
    ]


@pytest.mark.parametrize("break_", ["\n", "\r", "\x85", "\u2028"])
def test_no_note_breaks_its_line(muniment, monkeypatch, break_):
    from muniment.cli import inspect

    text = f"a{break_}{FORGED}"
    entry_ = SimpleNamespace(rel="a.md", name=text, readable=True, held=None, note=text)
    odd = SimpleNamespace(path="b", reason=text)
    found = SimpleNamespace(entries=lambda: (entry_,), odd=lambda: (odd,), complete=True)
    monkeypatch.setattr(inspect, "view_of", lambda *_, **__: found)
    monkeypatch.setattr(inspect, "verify", lambda *_: IndexCheck((text,), (text,)))
    listed = muniment("ls", "user").stdout.splitlines()
    assert listed[1:] == [
        f"  user/a.md  a {FORGED} (a {FORGED})",
        f"  passed over: user/b (a {FORGED})",
    ]
    told = muniment("index", "verify").stderr.splitlines()
    notes = [f"note: {scope}/b: a {FORGED}" for scope in ("user", "project")] + 2 * [f"note: a {FORGED}"]
    assert told == notes + 2 * [f"a {FORGED}"]


def test_a_document_of_remember_has_every_key_even_where_no_run_could_begin(muniment, tmp_path):
    begun = json.loads(muniment("remember", FACT, "--json").stdout)
    (tmp_path / "home" / "config.toml").write_text("colour = 1\n")
    done = muniment("remember", FACT, "--json")
    assert done.exit_code == 1
    document = json.loads(done.stdout)
    assert set(begun) == set(document)
    assert document["error"]["code"] == "config_invalid"
