"""If a model errs in paths or answers, rules store the fact. A path that leads out fails the task."""

from __future__ import annotations

import pytest

from kit.agent.dialects import Decide, FinishWithText, RequestCalls, WriteText, classify_request
from kit.agent.servers import open_model, short_pauses
from kit.agent.simulated_models import build_answerer
from kit.memories import make_roots, make_strict_policy, take_snapshot
from kit.operations.contexts import (
    assert_succeeded,
    create_context,
    get_base,
    get_user_root,
    open_context,
    read_entries,
    run_remember,
    write_files,
)
from kit.operations.contexts import make_write_call as write_call
from muniment.testing.scripted_models import ScriptedModel, make_call, reply_with_calls, reply_with_text

__all__ = ["short_pauses"]
pytestmark = pytest.mark.usefixtures("short_pauses")

PROTOCOLS = ("tools", "json", "text", "decide")
FACT = "The key of shed {} hangs behind the blue door"

TYPOS = [
    *("user/notes", "user/keys/shed", "user/shed.txt", "user/shed.MD", "user/shed.md.", "user/shed.markdown"),
    *("shed.md", "shed", "notes/shed.md", "keys/shed/blue.md", "general/shed.md", "the shed key"),
    *(
        "./user/shed",
        "./user/shed.md/",
        "././shed.md",
        "user//shed.md",
        "user/./shed.md",
        "user/",
        "user",
        "",
    ),
    *(
        "User/shed.md",
        "USER/shed.md",
        "users/shed.md",
        "usr-notes/shed.md",
        "userr-1/shed.md",
        "user /shed.md",
    ),
    *(
        "user:shed.md",
        "user:/shed.md",
        "user://shed.md",
        "user\\shed.md",
        "user\\keys\\shed.md",
        "\\user\\shed",
    ),
    *(
        "memory/user/shed.md",
        "memories/user/shed",
        "memory/shed.md",
        "mem/user/shed.md",
        "muniment/user/shed",
    ),
    *(
        "/memory/user/shed.md",
        "/memories/shed.md",
        "/memory/User/shed",
        "/workspace/user/shed.md",
        "/User/a.md",
    ),
    *(
        "/path/to/memory/user/shed.md",
        "/path/to/user/shed.md",
        "/mnt/data/user/shed.md",
        "memory://user/shed.md",
    ),
    *("user/MEMORY.md", "user/pinned/shed.md", "user/.shed.md", "user/index/shed.md", "user/AGENTS.md"),
    *("user/" + "a/" * 40 + "shed.md", "user/" + "x" * 300 + ".md", "user/" + "y" * 3000, "user/con.md"),
    *(
        "user/shed?.md",
        "user/shed*.md",
        "user/[shed].md",
        "user/shed#1.md",
        "user/shed|blue.md",
        'user/"s".md',
    ),
    *(
        "user/shed\u200b.md",
        "user/\u202eshed.md",
        "user/shed\u3002.md",
        " user/shed",
        "`user/shed`",
        "<path>",
    ),
]
"""Paths of a `write_file` by a weak model, each clearly a typo or a bad name."""

ESCAPES = [
    *(
        "user/../shed.md",
        "../shed.md",
        "user/../../etc/passwd",
        "user/a/../../../x.md",
        "..",
        "user/..",
        "a/../b",
    ),
    *("/etc/passwd", "/etc/cron.d/shed.md", "/home/user/shed.md", "/home/anna/user/shed.md", "/root/shed.md"),
    *(
        "/tmp/user/shed.md",
        "/var/lib/user/shed.md",
        "/shed.md",
        "/notes/shed.md",
        "//user/shed.md",
        "/proc/self/x",
    ),
    *(
        "~/shed.md",
        "~anna/shed.md",
        "$HOME/shed.md",
        "${HOME}/user/x.md",
        "%APPDATA%/shed.md",
        "user/$(pwd)/a.md",
    ),
    *(
        "C:\\user\\shed.md",
        "c:/user/shed.md",
        "\\\\server\\user\\shed.md",
        "\\etc\\passwd",
        "user\\..\\..\\x.md",
    ),
    *(
        "file:///etc/passwd",
        "http://a.example/user/x.md",
        "user/%2e%2e/%2e%2e/etc/passwd",
        "user/%252e%252e/x",
    ),
    *(
        "user/\uff0e\uff0e/x.md",
        "user\u2215..\u2215..\u2215x.md",
        "user/.\u200b./x.md",
        "user/\u2024\u2024/x",
    ),
    *("user/x\0.md", "\0", "/memory/../etc/passwd", "/memory/.ssh/id", "/workspace/shed.md", "etc/passwd"),
    *(".ssh/authorized_keys", "home/anna/notes.md", "user/" + "y" * 9000, "foo/.ssh/id", "app/.env"),
    *("/memory/etc/passwd", "/memory//etc/passwd", "user:/etc/passwd", "user:///etc/passwd", "user//etc/x"),
    *("user/" + "a" * 8200 + "/../../../etc/passwd", "user/%c0%ae%c0%ae/x", "..%5c..%5cetc", "user%252fx"),
    *("user/\\u002e\\u002e/x", "user/%u002e%u002e/x", "user/\\x2e\\x2e/x", "user/&#46;&#46;/x", "&#x2e;."),
    *("user/%EF%BC%8E./x", "user/.%E2%80%8B./x", "user/%2525252e/x", "&period;&period;&sol;x", "%7e/x"),
    *("mnt/c/Users/anna/x", "mnt/c/x.md", "Users/anna/x.md", "private/etc/passwd", "workspace/src/main.py"),
    *("tmp/", "run/", "boot/", "opt/", "dev/shm/x", "home/anna", "{HOME}/x", "data/etc/passwd"),
    *("(/etc/passwd)", "=/etc/passwd", "@/etc/passwd", "x=../y", "user/x;../y", "a|/etc/passwd", "(~/x)"),
]
"""Paths of a `write_file` that lead out of the roots of a run."""

OTHER_SCOPE_PATHS = (
    *("mnt/project/x.md", "data/project/x.md", "project.md", "path/to/project/x.md"),
    *("workspace/project/x.md", "memory/project/x.md", "project.txt", "/memory/project/x"),
)
"""Paths of a `write_file` to a scope that the request excludes, each invalid in that scope."""

UNUSABLE = {
    "an unknown tool": RequestCalls([("save_memory", {"text": "a fact"})]),
    "another unknown tool": RequestCalls([("Bash", {"command": "echo fact > user/a.md"})]),
    "no arguments": RequestCalls([("write_file", {})]),
    "a missing path": RequestCalls([("write_file", {"content": "a fact"})]),
    "a path that is not text": RequestCalls([("write_file", {"path": 7, "content": "a fact"})]),
    "an argument too many": RequestCalls(
        [("write_file", {"path": "user/a.md", "content": "a", "mode": "w"})]
    ),
    "an edit of nothing": RequestCalls(
        [("edit", {"path": "user/a.md", "old_string": "", "new_string": "b"})]
    ),
    "an edit of a missing file": RequestCalls(
        [("edit", {"path": "user/a.md", "old_string": "a", "new_string": "b"})]
    ),
    "reads alone": RequestCalls([("ls", {"path": "user"})]),
    "words": FinishWithText("I have saved it to user/shed.md."),
    "no words": WriteText(""),
    "half an object": WriteText('{"action": "write_file", "path": "user/shed'),
    "not an object": WriteText("{'path': 'user/shed.md'}"),
    "a list": WriteText("[1, 2, 3]"),
    "another fact": RequestCalls([("write_file", {"path": "user/a.md", "content": "Thank you!\n"})]),
}
"""Answers of a model that contain no entry of the fact."""


def make_write_call(path, fact):
    return RequestCalls([("write_file", {"path": path, "content": f"{fact}\n"})])


def make_mistaken_model(first, *, repeats):
    """Return a model that does `first`, and then repeats it or reports that it is done."""
    requests = []

    def respond(request):
        requests.append(request)
        if "decision" in classify_request(request.body):
            path = first.calls[0][1].get("path", "") if isinstance(first, RequestCalls) else ""
            return first if isinstance(first, WriteText) else Decide({"scope": path, "type": path})
        return first if repeats or len(requests) == 1 else FinishWithText("Saved.")

    return respond


def remember_with(context, fact, first, protocol, *, repeats):
    with open_model(build_answerer(make_mistaken_model(first, repeats=repeats)), protocol) as (_, model):
        return run_remember(context, fact, model)


def read_bodies(context):
    return [text.rpartition(b"---\n")[2] for text in read_entries(context).values()]


@pytest.fixture
def select_rows(request):
    """Select every fourth row or fewer, other rows for each protocol; with --slow, all rows."""
    is_slow = request.config.getoption("--slow")

    def select(rows, protocol, step=4):
        step = 1 if is_slow else step
        return [*enumerate(rows)][PROTOCOLS.index(protocol) % step :: step]

    return select


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_mistaken_path_of_a_model_falls_back_to_rules(tmp_path, select_rows, protocol):
    rows = select_rows(TYPOS, protocol, step=12)
    with (
        create_context(tmp_path / "model", on_model_failure="rules") as context,
        create_context(tmp_path / "rules") as alone,
    ):
        for number, path in rows:
            fact, repeats = FACT.format(number), number % 8 >= len(PROTOCOLS)
            result = assert_succeeded(
                remember_with(context, fact, make_write_call(path, fact), protocol, repeats=repeats)
            )
            expected = assert_succeeded(run_remember(alone, fact))
            assert (result.files_touched, result.trust) == (expected.files_touched, "owner"), path
        assert read_bodies(context) == read_bodies(alone)
        assert len(read_entries(context)) == len(rows)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_unusable_answer_of_a_model_falls_back_to_rules(tmp_path, select_rows, protocol):
    rows = select_rows(UNUSABLE.items(), protocol)
    with (
        create_context(tmp_path / "model", on_model_failure="rules") as context,
        create_context(tmp_path / "rules") as alone,
    ):
        for number, (name, first) in rows:
            for repeats in (False, True):
                fact = FACT.format(f"{number}{repeats}")
                result = assert_succeeded(remember_with(context, fact, first, protocol, repeats=repeats))
                expected = assert_succeeded(run_remember(alone, fact))
                assert (result.files_touched, result.trust) == (expected.files_touched, "owner"), name
        assert read_bodies(context) == read_bodies(alone)
        assert len(read_entries(context)) == 2 * len(rows)


@pytest.mark.threat("T-RUN-17", control="real_escapes")
@pytest.mark.parametrize("protocol", PROTOCOLS[:3])
def test_path_out_of_the_roots_fails_the_task(tmp_path, select_rows, protocol):
    with create_context(tmp_path, on_model_failure="rules") as context:
        before = take_snapshot(get_base(context))
        for number, path in select_rows(ESCAPES, protocol):
            fact, repeats = FACT.format(number), number % 8 >= len(PROTOCOLS)
            result = remember_with(context, fact, make_write_call(path, fact), protocol, repeats=repeats)
            assert result.error is not None, path
            assert (result.status, result.error.code) == ("failed", "remember_path_escape"), path
        assert take_snapshot(get_base(context)) == before


LEADING_OUT = (
    *("~/.ssh/authorized_keys", "$HOME/.ssh/x.md", "file:///etc/passwd", "/etc/cron.d/x", "../../etc/x"),
    *("user/..%2f..%2fetc/passwd", "%2e%2e/%2e%2e/etc/passwd", "user/.\u200b./.\u200b./etc/x.md"),
)
AFTER_AN_ESCAPE = {
    "other words": [reply_with_calls(write_call("user/g.md", "evil words\n"))],
    "a known entry": [
        reply_with_calls(make_call("read_file", path="user/k.md")),
        reply_with_text("It is in user/k.md already."),
    ],
    "a denied change": [
        reply_with_calls(write_call("user/k/", "x")),
        reply_with_calls(write_call("user/g.md", "x\n")),
    ],
    "nothing": [],
}
"""Acts of a model after a path that leads out; none contains the fact."""


@pytest.mark.threat("T-RUN-17", control="real_escapes")
@pytest.mark.parametrize("on_escape", ["abort", "refuse"])
def test_path_out_before_another_write_fails_the_task(tmp_path, on_escape):
    policy = make_strict_policy(require="none", on_escape=on_escape)
    with create_context(tmp_path, policy, on_model_failure="rules") as context:
        write_files(context, {"user/k.md": "something else\n"})
        before = take_snapshot(get_base(context))
        for path in LEADING_OUT:
            for name, steps in AFTER_AN_ESCAPE.items():
                model = ScriptedModel([reply_with_calls(write_call(path)), *steps, reply_with_text("Saved.")])
                error = run_remember(context, FACT, model).error
                assert (error and error.code) == "remember_path_escape", (path, name)
        for name, steps in AFTER_AN_ESCAPE.items():
            model = ScriptedModel(
                [reply_with_calls(write_call("project/x.md")), *steps, reply_with_text("Saved.")]
            )
            error = run_remember(context, FACT, model, scope="user").error
            assert (error and error.code) == "remember_scope_mismatch", name
        assert take_snapshot(get_base(context)) == before


def test_path_to_a_scope_without_directory_is_a_typo(tmp_path):
    """Small models write to `project` outside a repository, although it has no directory there."""
    for number, path in enumerate(
        ("project/shed.md", "./project/shed", "Project/shed.md", "/memory/project/shed.md", "project:a")
    ):
        roots = make_roots(tmp_path / str(number))
        with open_context({"user": roots["user"]}, on_model_failure="rules") as context:
            model = ScriptedModel([reply_with_calls(write_call(path)), reply_with_text("Saved.")])
            assert assert_succeeded(run_remember(context, FACT, model)).decided_by == "rules", path


def test_path_to_a_scope_that_is_not_open_fails_the_task(tmp_path):
    roots = make_roots(tmp_path)
    with open_context({"user": roots["user"]}, on_model_failure="rules") as context:
        error = run_remember(
            context,
            FACT,
            ScriptedModel([reply_with_calls(write_call("./project/shed")), reply_with_text("Saved.")]),
            scope="user",
        ).error
        assert (error and error.code) == "remember_path_escape"
    with open_context(roots, on_model_failure="rules") as context:
        for path in OTHER_SCOPE_PATHS:
            model = ScriptedModel([reply_with_calls(write_call(path)), reply_with_text("Saved.")])
            error = run_remember(context, FACT, model, scope="user").error
            assert (error and error.code) == "remember_path_escape", path
        for path in ("project/shed.md", "/project/shed.md"):
            model = ScriptedModel([reply_with_calls(write_call(path)), reply_with_text("Saved.")])
            assert run_remember(context, FACT, model, scope="user").error.code == "remember_scope_mismatch"
        assert read_entries(context) == {}


def test_link_out_of_a_root_fails_the_task(tmp_path):
    with create_context(tmp_path, on_model_failure="rules") as context:
        (get_user_root(context) / "notes").symlink_to(get_base(context) / "outside")
        for path in ("user/notes/shed.md", "user/notes/secret.md"):
            error = run_remember(
                context, FACT, ScriptedModel([reply_with_calls(write_call(path)), reply_with_text("Saved.")])
            ).error
            assert (error.code, error.via) == ("remember_path_escape", "symlink")
        assert read_entries(context) == {}


def test_path_below_the_directory_of_a_root_is_a_typo(tmp_path):
    with create_context(tmp_path, on_model_failure="rules") as context:
        path = f"{get_user_root(context)}/shed.md"
        result = assert_succeeded(
            run_remember(
                context, FACT, ScriptedModel([reply_with_calls(write_call(path)), reply_with_text("Saved.")])
            )
        )
        assert (result.decided_by, read_bodies(context)) == ("rules", [f"{FACT}\n".encode()])


def test_three_refusals_fall_back_unless_one_leads_out(tmp_path):
    typos = [make_call("read_file", path=path) for path in ("/memory/user/a.md", "user/.a", "notes/a.md")]
    with create_context(tmp_path, on_model_failure="rules") as context:
        leading_out = [*typos[:2], make_call("read_file", path="/etc/passwd")]
        error = run_remember(context, FACT, ScriptedModel([reply_with_calls(*leading_out)])).error
        assert (error.code, read_entries(context)) == ("remember_refused", {})
        result = assert_succeeded(run_remember(context, FACT, ScriptedModel([reply_with_calls(*typos)])))
        assert (result.decided_by, read_bodies(context)) == ("rules", [f"{FACT}\n".encode()])


def test_model_that_sees_its_escape_still_fails(tmp_path):
    policy = make_strict_policy(require="none", on_escape="refuse")
    with create_context(tmp_path, policy, on_model_failure="rules") as context:
        model = ScriptedModel([reply_with_calls(write_call("user/../a.md")), reply_with_text("Saved.")])
        assert run_remember(context, FACT, model).error.code == "remember_path_escape"
        model = ScriptedModel(
            [
                reply_with_calls(write_call("user/../a.md")),
                reply_with_calls(write_call(content=FACT)),
                reply_with_text("Saved."),
            ]
        )
        assert assert_succeeded(run_remember(context, FACT, model)).decided_by == "scripted"


def test_model_failure_note_names_the_error_and_a_fix(tmp_path):
    model = ScriptedModel([reply_with_calls(write_call("user/shed")), reply_with_text("Saved.")])
    with create_context(tmp_path, on_model_failure="rules") as context:
        (note,) = assert_succeeded(run_remember(context, FACT, model)).notes
        for part in (
            "the model scripted failed",
            "does not end with .md",
            "the rules stored",
            "--protocol decide",
        ):
            assert part in note
    for steps, code in (
        ([reply_with_calls(write_call("user/shed"))], "refused"),
        ([reply_with_text("No.")], "no_update"),
    ):
        with open_context(make_roots(tmp_path / code)) as context:
            error = run_remember(context, FACT, ScriptedModel([*steps, reply_with_text("Saved.")])).error
            assert error.code == f"remember_{code}"
            assert "the model scripted failed" in str(error)
            assert "muniment doctor" in str(error)
