"""`remember`, `ls`, `show`, `index`, `tool`: exit codes, messages, one JSON document."""

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

from kit.memories import CANARY, WORKER_CONFINEMENT, take_snapshot, write_file
from kit.model_stub import URL, install_model_stub
from kit.policy.files import format_rule, write_policy
from muniment import api
from muniment.agent.model import ModelError
from muniment.cli import entry
from muniment.cli import remember as command
from muniment.errors import WorkerLost
from muniment.kernel.names import Enforcement
from muniment.names import MAX_FACT_BYTES
from muniment.operations import owner, visibility
from muniment.store.index_plan import IndexCheck
from muniment.testing.scripted_models import ScriptedModel, make_call, reply_with_calls, reply_with_text

FACT = "The user prefers dark mode"
WRITES = (
    reply_with_calls(make_call("write_file", path="user/a.md", content=f"{FACT}\n")),
    reply_with_text("Saved."),
)
UNAVAILABLE = Mock(side_effect=ModelError("\x1b[2J\u202egone"))
LLM = ("--model=m", f"--base-url={URL}")


def use_scripted_model(monkeypatch, *steps):
    """Replace the rules with a scripted model."""
    real = api.open_model

    def open_scripted_model(settings, environment):
        is_rules = settings.model == "rules"
        return nullcontext(ScriptedModel(steps)) if is_rules else real(settings, environment)

    monkeypatch.setattr(api, "open_model", open_scripted_model)


# -- remember ------------------------------------------------------------------------------------------


FULL = WORKER_CONFINEMENT is Enforcement.FULL
SAVED = re.compile(r'(?P<verb>[a-z ]+): "(?P<title>.*)" \((?P<place>[^,]*), (?P<handle>[a-z0-9]{5})(, .*)?\)')
"""The line about an entry that a command has written."""


def test_remember_similar_fact_prints_the_older_entry(cli):
    saved = cli.run_for_lines("remember", "The replica is on port 5433")[0]
    older = saved.removeprefix("saved: ")
    assert (
        cli.run_for_lines("remember", "The replica is on port 5434")[1]
        == f"  similar entry, not changed: {older}"
    )
    document = cli.run_for_document("remember", "The replica is on port 5435")
    path = cli.run_for_document("show", SAVED.fullmatch(saved)["handle"])["path"]
    assert path in [each["path"] for each in document["similar"]]


def test_remember_prints_expiry_or_end_date(cli):
    for fact, option, key, line in (
        (FACT, ["--expires", "2098-12-31"], "expires", "  expires: hidden after 2098-12-31"),
        (
            f"{FACT} until 2098-12-31",
            [],
            "ends",
            "  ends on 2098-12-31, according to its text; after that date recall",
        ),
    ):
        saved, *lines = cli.run_for_lines("remember", fact, *option)
        assert len([each for each in lines if each.startswith(line)]) == 1
        text = cli.run_for_document("show", SAVED.fullmatch(saved)["handle"])["content"]
        assert f"\n{key}: 2098-12-31\n" in text
    document = cli.run_for_document("remember", "The user likes kites", "--expires=30d")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", document["expires"])
    (message,) = cli.run_for_lines("remember", FACT, "--expires", "soon", code=1)
    assert message.startswith("not saved: invalid expiry 'soon': use today or a later day (2026-12-31)")


def test_remember_prints_saved_fact_then_already_known(cli, roots):
    saved, *unusual = cli.run_for_lines("remember", FACT)
    assert [each.startswith("  confinement partial ") for each in unusual] == ([] if FULL else [True])
    found = SAVED.fullmatch(saved)
    assert (found["verb"], found["title"], found["place"]) == ("saved", "Prefers dark mode", "user/editor")
    path = cli.run_for_document("show", found["handle"])["path"]
    assert FACT in (roots["user"] / path.removeprefix("user/")).read_text()
    assert cli.run_for_lines("remember", "-", stdin=f"  {FACT}\n") == [f'already known: "{FACT}"']


def test_remember_verbose_prints_model_policy_and_files(cli):
    saved, confinement, detail, path = cli.run_for_lines("remember", FACT, "--verbose")
    assert confinement.startswith(f"  confinement {WORKER_CONFINEMENT}")
    assert re.fullmatch(
        r"  decided by rules, 2 turns, \d+\.\d\d s, policy strict@[0-9a-f]{8}, task remember-\w{26}", detail
    )
    handle = SAVED.fullmatch(saved)["handle"]
    assert path == f"  {cli.run_for_document('show', handle)['path']}"


def test_remember_with_partial_confinement_names_missing_layer(cli, monkeypatch):
    from kit.sandbox.probe import SERVICES  # Imported here: `kit.fake_platform` has no fence.
    from muniment.sandbox.fence.pool import Zygote, find_import_directories

    with Zygote("claiming_service:serve", directories=(*find_import_directories(), SERVICES)) as zygote:
        monkeypatch.setattr("muniment.sandbox.fence.pool._SHARED_ZYGOTE", zygote)
        detail = cli.run_for_lines("remember", FACT)[1]
        assert re.search(r"confinement partial \(without .*seccomp; see muniment doctor\)", detail)
        document = cli.run_for_document("remember", FACT)
        assert (document["enforcement"], document["missing_layers"][-1]) == ("partial", "seccomp")
        assert cli.run_for_error_code("remember", FACT, "--policy", "hardened") == "confinement_unavailable"


def test_remember_dry_run_writes_nothing_and_notes_own_index(cli, roots, monkeypatch):
    index = write_file(roots["user"], "MEMORY.md", "# Mine\nwritten by hand\n")
    assert cli.run_for_lines("remember", FACT, "--dry-run")[0].startswith(
        'would be saved: "Prefers dark mode" (user'
    )
    assert list(roots["user"].iterdir()) == [index]
    write_file(roots["user"], "a.md", "The user likes tea\n")
    edit = make_call("edit", path="user/a.md", old_string="tea\n", new_string=f"tea\n{FACT}\n")
    use_scripted_model(monkeypatch, reply_with_calls(edit), reply_with_text("x"))
    saved, *_, note = cli.run_for_lines("remember", FACT)
    assert SAVED.fullmatch(saved)["verb"] == "changed"
    assert FACT in (roots["user"] / "a.md").read_text()
    assert note.startswith("note: user/MEMORY.md was not generated by Muniment")


def test_remember_json_has_same_keys_on_failure(cli, home, monkeypatch):
    done = cli.run_for_document("remember", FACT)
    assert (done["status"], done["error"]) == ("completed", None)
    (home / "config.toml").write_text("colour = 1\n")
    unusable = cli.run_for_document("remember", FACT, code=1)
    (home / "config.toml").unlink()
    use_scripted_model(monkeypatch, reply_with_text("No."))
    failed = cli.run_for_document("remember", FACT, "--on-model-failure=fail", code=1)
    assert (set(unusable), set(failed), failed["status"]) == (set(done), set(done), "failed")
    codes = [each["error"]["code"] for each in (unusable, failed)]
    assert codes == ["config_invalid", "remember_no_update"]


def test_remember_failure_prints_one_line_with_code(cli):
    for line in (
        *("invalid_scope --scope team", "invalid_scope --root team=/tmp", "policy_invalid --policy absent"),
        *("config_invalid --symlinks follow", "config_invalid --root nothing"),
        "invalid_context_mode --context all",
    ):
        code, *arguments = line.split()
        done = cli("remember", FACT, *arguments)
        assert (done.exit_code, done.stdout) == (1, ""), arguments
        assert re.fullmatch(rf"not saved: .*\[{code}\]\n", done.stderr), arguments


def test_invalid_command_line_exits_2_with_reason(cli):
    for row in (
        *("remember a b", "remember a --nope", "nope", "show", "serve --port 70000", "policy lint"),
        *("policy explain strict read -x.md", "policy sign strict", "erase --verify - --yes"),
        *("erase", "erase user/a.md --verify -"),
        *(
            "recall | the query is empty: describe what to recall",
            "recall \t | the query is empty: describe what to recall",
            "recall x --limit=0 | --limit",
        ),
        *("recall x --hook | from standard input", "recall --hook --json | from standard input"),
        "doctor --model rules --policy strict | remove it to test a model",
        *("conformance --target elsewhere | unknown target", "conformance --peer mcp= | unknown target"),
        "conformance --peer muniment | is listed twice",
        *("conformance --class nonsense | unknown class", "conformance --case x | case 'x' not found"),
        "conformance --jobs 0 | Invalid value for '--jobs'",
    ):
        line, _, message = row.partition(" | ")
        done = cli(*line.split(" "), bound=False)
        assert (done.exit_code, done.stdout) == (2, ""), row
        assert message in " ".join(done.stderr.split()), row


def test_version_and_help(cli):
    assert cli("--version", bound=False).stdout.startswith("muniment 0.")
    policy = "lint explain diff test prove show lock sign verify"
    for line, names in (("--help", "remember ls show index tool"), ("policy --help", policy)):
        help_text = " ".join(cli.run_for_lines(*line.split(), bound=False))
        assert all(f" {name} " in help_text for name in names.split())


def test_remember_rejects_invalid_standard_input(cli, roots):
    for stdin, reason in (
        *((b"", "empty"), (b"\xff\xfe", "not UTF-8"), (b"x" * (MAX_FACT_BYTES + 1), f"{MAX_FACT_BYTES}")),
        (b"the first half" + b" " * (2 * MAX_FACT_BYTES) + b"the second half", "too long"),
        ("é".encode() * MAX_FACT_BYTES + b"x", "too long"),
    ):
        (line,) = cli.run_for_lines("remember", "-", stdin=stdin, code=1)
        assert (reason in line, line.endswith("[invalid_content]")) == (True, True)
    assert list(roots["user"].iterdir()) == []


def test_ctrl_c_exits_130_and_writes_nothing(cli, tmp_path, monkeypatch):
    def cancel(_request):
        signal.raise_signal(signal.SIGINT)
        return WRITES[0]

    def photograph_memory():
        """Return everything except the state, which records the end of a task."""
        return {
            path: content for path, content in take_snapshot(tmp_path).items() if "/home/state" not in path
        }

    cli("remember", FACT, "--dry-run")
    before = photograph_memory()
    use_scripted_model(monkeypatch, cancel)
    assert cli.run_for_lines("remember", FACT, code=130)[0].startswith("cancelled: ")
    use_scripted_model(monkeypatch, cancel)
    assert cli.run_for_document("remember", FACT, code=130)["status"] == "cancelled"
    monkeypatch.setattr(command, "_read_fact", Mock(side_effect=KeyboardInterrupt))
    assert cli.run_for_lines("remember", "-", code=130) == ["cancelled: nothing was written [cancelled]"]
    assert cli.run_for_document("remember", "-", code=130)["status"] == "cancelled"
    assert photograph_memory() == before
    history = cli("history")
    assert (history.stdout, history.stderr) == ("", "note: no changes were committed yet\n")


def test_output_escapes_model_and_setting_values(cli, roots, home, tmp_path, monkeypatch):
    use_scripted_model(monkeypatch, UNAVAILABLE)
    (failed,) = cli.run_for_lines("remember", FACT, "--on-model-failure=fail", code=1)
    assert failed.startswith("not saved: the model failed; nothing was written")
    output = " ".join(cli.run_for_lines("remember", FACT))
    assert "note: the model scripted failed: the model failed; the rules stored the fact" in output
    for name in ("remember x", "ls", "tool"):
        output += " ".join(cli.run_for_lines(*name.split(), "--root=us\x1b[2J\u202eer=/tmp", code=1))
    output += cli("ls", f"--workspace={tmp_path}/\x1b[2J", bound=False).output
    assert not {"\x1b", "\u202e"} & set(failed + output)
    with api.open(tmp_path, home=home, roots=roots) as memory:
        result = replace(memory.remember(f"{FACT}s"), decided_by="m\nsaved (new): \x1b[2J\ue000")
    lines = list(command._format_result(result, FACT, (), verbose=True))
    assert [each for each in lines if each.startswith("  decided by m saved (new): [2J\\u{e000}, ")]


def test_events_go_to_stderr_only_if_log_level_is_set(cli):
    for level in ("INFO", "info"):
        record = json.loads(cli("remember", FACT, MUNIMENT_LOG=level).stderr.splitlines()[-1])
        assert (record["event"], record["status"]) == ("remember_ended", "completed")
    for level in ("", "LOUD"):
        assert cli("remember", FACT, MUNIMENT_LOG=level).stderr == ""


# -- language models -----------------------------------------------------------------------------------


key = pytest.fixture(lambda tmp_path: str(write_file(tmp_path, "key", f"{CANARY}\n")))


def test_remember_uses_and_names_language_model(cli, roots, monkeypatch, key):
    models = install_model_stub(monkeypatch, *WRITES)
    options = ("--model=org/m", LLM[1], f"--api-key-file={key}", "--protocol=json", "--detail", "--verbose")
    saved, _, summary, path, *detail = cli.run_for_lines("remember", FACT, *options)
    assert re.fullmatch(r'saved: "Prefers dark mode" \(user, \w{5}\)', saved)
    assert (path, "Saved." in " ".join(detail)) == ("  user/a.md", True)
    assert summary.startswith("  decided by org/m, 2 turns, ")
    assert '"decided_by": "org/m"' in (roots["user"] / "a.md").read_text()
    (model,) = models
    assert (model.base_url, model.api_key, model.protocol, model.closed) == (URL, CANARY, "json", 1)


def test_api_key_never_reaches_environment_output_or_log(cli, monkeypatch, key):
    environments = []

    def record_environment(_request):
        environments.append(dict(os.environ))
        return reply_with_text("Done.")

    models = install_model_stub(monkeypatch, record_environment)
    use_scripted_model(monkeypatch, record_environment)
    for options in ((), LLM):
        cli("remember", FACT, *options, MUNIMENT_API_KEY=CANARY)
    assert [CANARY in repr(each) for each in environments] == [False, False]
    assert all("MUNIMENT_HOME" in each for each in environments)
    assert [model.api_key for model in models] == [CANARY]
    for steps in (WRITES, [UNAVAILABLE]):
        for flags, source in ((), {"MUNIMENT_API_KEY": CANARY}), (["--json"], {"MUNIMENT_API_KEY_FILE": key}):
            models = install_model_stub(monkeypatch, *steps)
            done = cli("remember", FACT, *LLM, *flags, MUNIMENT_LOG="DEBUG", **source)
            assert (models[0].api_key, "remember_ended" in done.stderr) == (CANARY, True)
            assert CANARY not in done.output + done.stderr


UNUSED = {"--base-url": URL, "--api-key-file": "/key", "--protocol": "json"}


def test_invalid_model_settings_print_one_line_and_write_nothing(cli, home, roots, monkeypatch):
    models = install_model_stub(monkeypatch)
    path, llm = "need the path of a file", " ".join(LLM)
    for message, arguments, environment in (
        ("give its address: --base-url URL, such as http://127.0.0.1:8080/v1", "--model=m", {}),
        ("invalid model name: use 1 to 200 printable", f"--model=m\x1b[2J {LLM[1]}", {}),
        ("auto, tools, json, text or decide", f"{llm} --protocol=xml", {}),
        *((f"{flag} is for a language model", f"{flag}={value}", {}) for flag, value in UNUSED.items()),
        ("--protocol is for a language model", "--model=rules --protocol=json", {}),
        *(("--base-url URL", "", {"MUNIMENT_MODEL": "m"}), (path, f"{llm} --api-key-file={CANARY}", {})),
        ("MUNIMENT_API_KEY contains no valid key", llm, {"MUNIMENT_API_KEY": f"{CANARY} x"}),
        (path, llm, {"MUNIMENT_API_KEY_FILE": CANARY}),
        ("the key file /dev/null is empty", f"{llm} --api-key-file=/dev/null", {}),
    ):
        done = cli("remember", "-", *arguments.split(), stdin=CANARY, **environment)
        assert (done.exit_code, done.stdout) == (1, "")
        assert re.fullmatch(rf"not saved: .*{re.escape(message)}.* \[config_invalid\]\n", done.stderr)
        assert [part for part in (CANARY, "\x1b") if part in done.stderr] == []
    document = cli.run_for_document("remember", FACT, *arguments.split(), code=1, **environment)
    assert (document["error"]["code"], document["decided_by"]) == ("config_invalid", None)
    assert (home.exists(), models) == (False, [])
    monkeypatch.undo()
    for url in ("http://127.0.0.1:1/chat/completions", "127.0.0.1:1", "ftp://127.0.0.1/v1"):
        (message,) = cli.run_for_lines("remember", FACT, "--model=m", f"--base-url={url}", code=1)
        assert re.fullmatch(r"not saved: invalid base URL .*\[config_invalid\]", message)
    assert list(roots["user"].iterdir()) == []


def test_root_with_key_file_is_rejected_and_ls_ignores_model(cli, roots):
    unusable = {"MUNIMENT_MODEL": "m", "MUNIMENT_API_KEY": "no key", "MUNIMENT_API_KEY_FILE": "/nowhere"}
    for line in ("ls", "index rebuild"):
        assert cli(*line.split(), **unusable).exit_code == 0
    key = write_file(roots["user"], "key.md", CANARY)
    for line in ("remember x", "ls", "index verify"):
        (message,) = cli.run_for_lines(*line.split(), MUNIMENT_API_KEY_FILE=str(key), code=1)
        assert f"user: its root contains {key}; bind a directory outside it" in message
        assert CANARY not in message


# -- ls, show, index -----------------------------------------------------------------------------------

HOSTILE_NAME = "\x1b]0;owned\x07\x9b2J\u202etxt.md"
FORGED = "user/forged.md Forged"


@pytest.fixture
def hostile_names(roots):
    """Write a memory whose names and texts contain control characters."""
    write_file(roots["user"], "good.md", "---\nname: Good\ntype: user\n---\nbody \x1b[2J\x9b\u202e\n")
    write_file(roots["user"], "title.md", '---\nname: "a\\x1b[2Jb\u202e"\n---\nx\n')
    write_file(roots["user"], "let-pass.md", "---\nname: a\ue000b\n---\nno gate withholds it\n")
    write_file(roots["user"], HOSTILE_NAME, "x")
    write_file(roots["user"], os.fsdecode(b"latin-\xe9.md"), "x")
    return roots


@pytest.mark.threat("T-LOG-01", control="visible")
def test_listing_escapes_names_and_titles_of_entries(cli, hostile_names):
    for arguments in (
        ["ls"],
        ["ls", "user"],
        ["index", "verify"],
        ["index", "rebuild"],
        ["ls", HOSTILE_NAME],
    ):
        for flags in ([], ["--json"]):
            done = cli(*arguments, *flags)
            assert not set("\x1b\x07\x9b\u202e\udce9\ue000") & set(done.output)
            assert not flags or json.loads(done.stdout)
    write_file(hostile_names["project"], "a.md", f'---\nname: "Real\\n  {FORGED}\\r  {FORGED}"\n---\nx\n')
    write_file(hostile_names["project"], "b.md", f"---\nname: |\n  Real\n  {FORGED}\n---\nx\n")
    records = cli.run_for_records("ls", "project", "--long")
    assert {each.path: each.text for each in records} == {
        "project/a.md": f"Real {FORGED} {FORGED}",
        "project/b.md": f"Real {FORGED}",
    }


@pytest.mark.usefixtures("hostile_names")
def test_ls_lists_entries_and_skipped_files(cli, roots):
    assert {each.path: each.text for each in cli.run_for_records("ls", "--long")} == {
        "user/good.md": "withheld (ansi)",
        "user/title.md": "withheld (bidi)",
        "user/let-pass.md": "a\\u{e000}b",
    }
    notes = cli("ls").stderr.splitlines()
    assert (len(notes), sum(line.startswith("note: skipped: user/") for line in notes)) == (2, 2)
    document = cli.run_for_document("ls")
    entries = [(item["path"], item["held"]) for item in document["entries"]]
    assert entries == [("user/good.md", "ansi"), ("user/let-pass.md", None), ("user/title.md", "bidi")]
    assert (len(document["odd"]), document["complete"]) == (2, True)
    for path in ("a.md", "top/b.md", "topic/b.md"):
        write_file(roots["project"], path)
    for argument, path in (("topic/", "topic/b.md"), ("topic/b.md", "topic/b.md"), ("top", "top/b.md")):
        (record,) = cli.run_for_records("ls", f"project/{argument}", "--long")
        assert (record.text, record.path) == ("b", f"project/{path}")
    assert "user" not in cli("ls", "project").stdout
    assert cli("ls", "/").exit_code == 1
    message = "not listed: no entries found at user/nope [not_found]"
    assert cli.run_for_lines("ls", "user/nope", code=1) == [message]


def test_ls_keeps_notes_on_one_line_and_lists_unreadable_entry(cli, monkeypatch):
    for line_break in "\n\r\x85\u2028":
        text = f"a{line_break}{FORGED}"
        rest = dict.fromkeys(("description", "type", "expires", "ends", "held")) | {"handle": "", "at": ""}
        entries = (
            SimpleNamespace(rel="a.md", name=text, readable=True, note=text, size=1, trust="agent", **rest),
            SimpleNamespace(
                rel="b.md", name="\x1b[2J", readable=False, note="", size=1, trust="agent", **rest
            ),
        )
        odd = (SimpleNamespace(path="c", reason=text),)
        fake_view = Mock(
            entries=Mock(return_value=entries), list_odd_names=Mock(return_value=odd), is_complete=False
        )
        monkeypatch.setattr(visibility, "open_view", Mock(return_value=fake_view))
        monkeypatch.setattr(owner, "open_view", Mock(return_value=fake_view))
        monkeypatch.setattr(owner, "verify_root_index", Mock(return_value=IndexCheck((text,), (text,))))
        first = f"a {FORGED} (a {FORGED})\t\tuser\tagent\t\tuser/a.md"
        second = "cannot be read\t\tuser\tagent\t\tuser/b.md"
        skipped = f"note: skipped: user/c (a {FORGED})", "note: user could not be read completely"
        assert cli.run_for_lines("ls", "user") == [first, second, *skipped]
        notes = [f"note: {scope}/c: a {FORGED}" for scope in ("user", "project")] + 2 * [f"note: a {FORGED}"]
        assert cli.run_for_lines("index", "verify", code=1) == notes + 2 * [f"a {FORGED}"]


def test_show_prints_raw_bytes_to_pipe_and_escapes_on_terminal(cli, hostile_names, request):
    text = (
        write_file(hostile_names["user"], "no-newline.md", "x")
        and (hostile_names["user"] / "good.md").read_text()
    )
    assert cli("show", "user/good.md").stdout_bytes.decode() == text
    assert cli.run_for_document("show", "user/good.md") == {"path": "user/good.md", "content": text}
    request.getfixturevalue("fake_terminal")
    for flags in ((), ("--verbose",)):
        printed = cli("show", "user/good.md", *flags, "--color=never").stdout
        assert (printed.endswith("\n"), set("\x1b\x9b\u202e") & set(printed)) == (True, set())
        assert "body \\u{1b}[2J\\u{9b}\\u{202e}" in " ".join(printed.split())
    assert re.fullmatch(r"x +user  \w{5}\n", cli("show", "user/no-newline.md", "--color=never").stdout)


def test_show_rejects_paths_outside_memory(cli, roots, tmp_path):
    (roots["user"] / "link.md").symlink_to(tmp_path / "outside" / "secret.md")
    write_file(roots["user"], "bytes.md", b"\xff")
    escapes = "user/../outside/secret.md", "/etc/passwd", "user/link.md"
    for path, code in (
        *((path, "path_escape") for path in escapes),
        *(("user/absent.md", "not_found"), ("", "bad_name"), ("team/a.md", "refused")),
        *(("user", "not_a_file"), ("user/bytes.md", "not_text")),
    ):
        result = cli("show", path)
        assert (result.exit_code, f"[{code}]" in result.stderr, CANARY in result.output) == (
            1,
            True,
            False,
        ), path
    assert cli.run_for_error_code("show", path) == code


def test_index_verify_detects_and_rebuild_repairs(cli, roots):
    write_file(roots["user"], "a.md", "x\n")
    (wrong,) = cli.run_for_lines("index", "verify", code=1)
    assert wrong == "user/MEMORY.md is missing; run: muniment index rebuild"
    assert cli.run_for_document("index", "verify", code=1)["correct"] is False
    assert cli.run_for_lines("index", "rebuild") == ["the indexes are rebuilt"]
    assert cli.run_for_lines("index", "verify") == ["the indexes are correct"]
    assert cli.run_for_document("index", "verify")["correct"] is True
    write_file(roots["user"], HOSTILE_NAME, "x")
    write_file(roots["project"], "MEMORY.md", "# Mine\nby hand\n")
    assert "note: project/MEMORY.md was not generated by Muniment" in cli("index", "rebuild").stderr
    verified = cli("index", "verify")
    assert (verified.exit_code, verified.stderr.count("note: user/")) == (0, 1)
    (roots["user"] / "MEMORY.md").unlink()
    (roots["user"] / "MEMORY.md").mkdir()
    assert "user/MEMORY.md cannot be rebuilt" in "".join(cli.run_for_lines("index", "rebuild", code=1))


def test_world_writable_root_is_reported_by_read_commands(cli, roots):
    roots["user"].chmod(0o777)
    for line in ("ls", "show user/a.md", "index verify", "index rebuild"):
        (message,) = cli.run_for_lines(*line.split(), code=1)
        assert re.search(r"chmod go-w.*\[managed_memory_unavailable\]$", message)


# -- tool ----------------------------------------------------------------------------------------------


def request_line(tool, **arguments):
    return json.dumps({"tool": tool, "args": arguments}) + "\n"


def read_answers(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_tool_answers_each_line_and_commits_only_with_option(cli, roots):
    lines = (
        request_line("write_file", path="user/a.md", content="x\n") + "\n" + request_line("ls", path="user")
    )
    first, second = read_answers(cli("tool", stdin=lines))
    assert set(first) == set(second) == {"verdict", "code", "text"}
    assert second["text"] == "a.md (2 bytes)\n[1 in all]"
    assert list(roots["user"].iterdir()) == []
    done = cli("tool", "--commit", stdin=lines)
    assert (done.exit_code, len(read_answers(done)), done.stderr) == (0, 2, "committed: user/a.md\n")
    assert (roots["user"] / "a.md").read_text() == "x\n"


def test_tool_answers_invalid_request_and_continues(cli):
    bad = ("{", "[]", "null", '"ls"', '{"tool": "ls"}', '{"tool": "ls", "args": {}, "x": 1}')
    bad += ("[" * 100_000, "1" * 5000)
    unknown = [json.dumps({"tool": tool, "args": None}) for tool in (None, [], {}, 7, "bash")]
    done = cli("tool", stdin="\n".join((*bad, *unknown, request_line("ls", path=""))))
    codes = [each["code"] for each in read_answers(done)]
    assert codes == ["bad_arguments"] * len(bad) + ["unknown_tool"] * len(unknown) + [None]


def test_tool_fails_on_oversized_line_and_path_escape(cli, roots, home, monkeypatch):
    escape = request_line("write_file", path="user/a.md", content="x")
    escape += request_line("edit", path="/etc/x", old_string="a", new_string="b")
    done = cli("tool", "--commit", stdin=escape)
    assert (done.exit_code, "[remember_path_escape]" in done.stderr) == (1, True)
    assert list(roots["user"].iterdir()) == []
    assert "[invalid_scope]" in cli("tool", bound=False, stdin="").stderr
    assert "[confinement_unavailable]" in cli.run_for_lines("tool", "--in-process", stdin="", code=1)[0]
    list_rule = format_rule("allow", "look", ["list", "read"], ["/user/**/*.md"])
    write_policy(home / "policies" / "own.toml", body=list_rule, extends=["strict"])
    done = cli("tool", "--policy=own", stdin=request_line("write_file", path="user/a.md", content="x\n"))
    assert read_answers(done)[0]["code"] == "refused"
    monkeypatch.setattr(command, "MAX_LINE_BYTES", 1000)
    done = cli("tool", "--commit", stdin=request_line("ls", path="x" * 2000) + request_line("ls", path=""))
    assert (done.exit_code, [each["code"] for each in read_answers(done)]) == (1, ["too_large"])


def test_symlinks_option_resolves_links(cli, roots, monkeypatch):
    (roots["user"] / "topic").mkdir()
    (roots["user"] / "t").symlink_to("topic")
    request = request_line("write_file", path="user/t/new.md", content="new\n")
    assert read_answers(cli("tool", stdin=request))[0]["code"] == "path_escape"
    done = cli("tool", "--symlinks", "beneath", "--commit", stdin=request)
    assert read_answers(done)[0]["text"] == "created user/topic/new.md (4 bytes); user/t/new.md points there"
    assert done.stderr == "committed: user/topic/new.md\n"
    use_scripted_model(
        monkeypatch,
        reply_with_calls(make_call("write_file", path="user/t/more.md", content=f"{FACT}\n")),
        reply_with_text("x"),
    )
    document = cli.run_for_document("remember", FACT, "--symlinks", "beneath")
    assert document["files_touched"] == ["user/topic/prefers-dark-mode.md"]


# -- start of the program ------------------------------------------------------------------------------


@pytest.fixture
def main(monkeypatch):
    def main(body, line):
        monkeypatch.setattr("muniment.cli.app.app", body)
        monkeypatch.setattr(sys, "argv", ["muniment", *line.split()])
        entry.main()

    return main


def test_zygote_starts_early_only_for_agent_commands(main, monkeypatch):
    zygote = Mock()
    zygote.start.side_effect = WorkerLost("no; the command itself reports it")
    monkeypatch.setattr("muniment.sandbox.fence.pool.get_shared_zygote", lambda: zygote)
    for line in ("tool --in-process", "remember --help", "ls", ""):
        main(lambda: None, line)
    assert not zygote.start.called
    for line in ("remember x", "tool", "acp"):
        main(lambda: None, line)
    assert zygote.start.call_count == 3


def test_main_handles_ctrl_c_and_unencodable_output(main, monkeypatch, capsys):
    with pytest.raises(SystemExit) as caught:
        main(lambda: signal.raise_signal(signal.SIGINT), "ls")
    assert caught.value.code == 130
    assert "cancelled" in capsys.readouterr().err
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    main(lambda: sys.stdout.write("é 项\n") and sys.stdout.flush(), "ls")
    assert raw.getvalue() == b"\xe9 \\u9879\n"
