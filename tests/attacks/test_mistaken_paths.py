"""If a model errs in paths or answers, rules store the fact. A path that leads out fails the task."""

from __future__ import annotations

import pytest

from kit.agent.dialects import AskForCalls, Decide, Say, Utter, asked_for
from kit.agent.served_minds import through
from kit.agent.servers import hasty, serving
from kit.memories import make_roots, photograph, strict
from kit.operations.places import base, done, lay, made, memory, opened, remembering, user
from kit.operations.places import write as write_call
from muniment.testing.minds import ScriptedModel, call, calls, say

__all__ = ["hasty"]
pytestmark = pytest.mark.usefixtures("hasty")

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
    "an unknown tool": AskForCalls([("save_memory", {"text": "a fact"})]),
    "another unknown tool": AskForCalls([("Bash", {"command": "echo fact > user/a.md"})]),
    "no arguments": AskForCalls([("write_file", {})]),
    "a missing path": AskForCalls([("write_file", {"content": "a fact"})]),
    "a path that is not text": AskForCalls([("write_file", {"path": 7, "content": "a fact"})]),
    "an argument too many": AskForCalls([("write_file", {"path": "user/a.md", "content": "a", "mode": "w"})]),
    "an edit of nothing": AskForCalls([("edit", {"path": "user/a.md", "old_string": "", "new_string": "b"})]),
    "an edit of a missing file": AskForCalls(
        [("edit", {"path": "user/a.md", "old_string": "a", "new_string": "b"})]
    ),
    "reads alone": AskForCalls([("ls", {"path": "user"})]),
    "words": Say("I have saved it to user/shed.md."),
    "no words": Utter(""),
    "half an object": Utter('{"action": "write_file", "path": "user/shed'),
    "not an object": Utter("{'path': 'user/shed.md'}"),
    "a list": Utter("[1, 2, 3]"),
    "another fact": AskForCalls([("write_file", {"path": "user/a.md", "content": "Thank you!\n"})]),
}
"""Answers of a model that contain no entry of the fact."""


def make_write_call(path, fact):
    return AskForCalls([("write_file", {"path": path, "content": f"{fact}\n"})])


def make_mistaken_model(first, *, repeats):
    """Return a model that does `first`, and then repeats it or reports that it is done."""
    requests = []

    def respond(request):
        requests.append(request)
        if "decision" in asked_for(request.body):
            path = first.calls[0][1].get("path", "") if isinstance(first, AskForCalls) else ""
            return first if isinstance(first, Utter) else Decide({"scope": path, "type": path})
        return first if repeats or len(requests) == 1 else Say("Saved.")

    return respond


def remember_with(context, fact, first, protocol, *, repeats):
    with serving(through(make_mistaken_model(first, repeats=repeats)), protocol) as (_, model):
        return remembering(context, fact, model)


def read_bodies(context):
    return [text.rpartition(b"---\n")[2] for text in memory(context).values()]


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
    with made(tmp_path / "model", on_model_failure="rules") as context, made(tmp_path / "rules") as alone:
        for number, path in rows:
            fact, repeats = FACT.format(number), number % 8 >= len(PROTOCOLS)
            result = done(
                remember_with(context, fact, make_write_call(path, fact), protocol, repeats=repeats)
            )
            expected = done(remembering(alone, fact))
            assert (result.files_touched, result.trust) == (expected.files_touched, "owner"), path
        assert read_bodies(context) == read_bodies(alone)
        assert len(memory(context)) == len(rows)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_unusable_answer_of_a_model_falls_back_to_rules(tmp_path, select_rows, protocol):
    rows = select_rows(UNUSABLE.items(), protocol)
    with made(tmp_path / "model", on_model_failure="rules") as context, made(tmp_path / "rules") as alone:
        for number, (name, first) in rows:
            for repeats in (False, True):
                fact = FACT.format(f"{number}{repeats}")
                result = done(remember_with(context, fact, first, protocol, repeats=repeats))
                expected = done(remembering(alone, fact))
                assert (result.files_touched, result.trust) == (expected.files_touched, "owner"), name
        assert read_bodies(context) == read_bodies(alone)
        assert len(memory(context)) == 2 * len(rows)


@pytest.mark.threat("T-RUN-17", control="real_escapes")
@pytest.mark.parametrize("protocol", PROTOCOLS[:3])
def test_path_out_of_the_roots_fails_the_task(tmp_path, select_rows, protocol):
    with made(tmp_path, on_model_failure="rules") as context:
        before = photograph(base(context))
        for number, path in select_rows(ESCAPES, protocol):
            fact, repeats = FACT.format(number), number % 8 >= len(PROTOCOLS)
            result = remember_with(context, fact, make_write_call(path, fact), protocol, repeats=repeats)
            assert result.error is not None, path
            assert (result.status, result.error.code) == ("failed", "remember_path_escape"), path
        assert photograph(base(context)) == before


LEADING_OUT = (
    *("~/.ssh/authorized_keys", "$HOME/.ssh/x.md", "file:///etc/passwd", "/etc/cron.d/x", "../../etc/x"),
    *("user/..%2f..%2fetc/passwd", "%2e%2e/%2e%2e/etc/passwd", "user/.\u200b./.\u200b./etc/x.md"),
)
AFTER_AN_ESCAPE = {
    "other words": [calls(write_call("user/g.md", "evil words\n"))],
    "a known entry": [calls(call("read_file", path="user/k.md")), say("It is in user/k.md already.")],
    "a denied change": [calls(write_call("user/k/", "x")), calls(write_call("user/g.md", "x\n"))],
    "nothing": [],
}
"""Acts of a model after a path that leads out; none contains the fact."""


@pytest.mark.threat("T-RUN-17", control="real_escapes")
@pytest.mark.parametrize("on_escape", ["abort", "refuse"])
def test_path_out_before_another_write_fails_the_task(tmp_path, on_escape):
    policy = strict(require="none", on_escape=on_escape)
    with made(tmp_path, policy, on_model_failure="rules") as context:
        lay(context, {"user/k.md": "something else\n"})
        before = photograph(base(context))
        for path in LEADING_OUT:
            for name, steps in AFTER_AN_ESCAPE.items():
                model = ScriptedModel([calls(write_call(path)), *steps, say("Saved.")])
                error = remembering(context, FACT, model).error
                assert (error and error.code) == "remember_path_escape", (path, name)
        for name, steps in AFTER_AN_ESCAPE.items():
            model = ScriptedModel([calls(write_call("project/x.md")), *steps, say("Saved.")])
            error = remembering(context, FACT, model, scope="user").error
            assert (error and error.code) == "remember_scope_mismatch", name
        assert photograph(base(context)) == before


def test_path_to_a_scope_without_directory_is_a_typo(tmp_path):
    """Small models write to `project` outside a repository, although it has no directory there."""
    for number, path in enumerate(
        ("project/shed.md", "./project/shed", "Project/shed.md", "/memory/project/shed.md", "project:a")
    ):
        roots = make_roots(tmp_path / str(number))
        with opened({"user": roots["user"]}, on_model_failure="rules") as context:
            model = ScriptedModel([calls(write_call(path)), say("Saved.")])
            assert done(remembering(context, FACT, model)).decided_by == "rules", path


def test_path_to_a_scope_that_is_not_open_fails_the_task(tmp_path):
    roots = make_roots(tmp_path)
    with opened({"user": roots["user"]}, on_model_failure="rules") as context:
        error = remembering(
            context, FACT, ScriptedModel([calls(write_call("./project/shed")), say("Saved.")]), scope="user"
        ).error
        assert (error and error.code) == "remember_path_escape"
    with opened(roots, on_model_failure="rules") as context:
        for path in OTHER_SCOPE_PATHS:
            model = ScriptedModel([calls(write_call(path)), say("Saved.")])
            error = remembering(context, FACT, model, scope="user").error
            assert (error and error.code) == "remember_path_escape", path
        for path in ("project/shed.md", "/project/shed.md"):
            model = ScriptedModel([calls(write_call(path)), say("Saved.")])
            assert remembering(context, FACT, model, scope="user").error.code == "remember_scope_mismatch"
        assert memory(context) == {}


def test_link_out_of_a_root_fails_the_task(tmp_path):
    with made(tmp_path, on_model_failure="rules") as context:
        (user(context) / "notes").symlink_to(base(context) / "outside")
        for path in ("user/notes/shed.md", "user/notes/secret.md"):
            error = remembering(context, FACT, ScriptedModel([calls(write_call(path)), say("Saved.")])).error
            assert (error.code, error.via) == ("remember_path_escape", "symlink")
        assert memory(context) == {}


def test_path_below_the_directory_of_a_root_is_a_typo(tmp_path):
    with made(tmp_path, on_model_failure="rules") as context:
        path = f"{user(context)}/shed.md"
        result = done(remembering(context, FACT, ScriptedModel([calls(write_call(path)), say("Saved.")])))
        assert (result.decided_by, read_bodies(context)) == ("rules", [f"{FACT}\n".encode()])


def test_three_refusals_fall_back_unless_one_leads_out(tmp_path):
    typos = [call("read_file", path=path) for path in ("/memory/user/a.md", "user/.a", "notes/a.md")]
    with made(tmp_path, on_model_failure="rules") as context:
        leading_out = [*typos[:2], call("read_file", path="/etc/passwd")]
        error = remembering(context, FACT, ScriptedModel([calls(*leading_out)])).error
        assert (error.code, memory(context)) == ("remember_refused", {})
        result = done(remembering(context, FACT, ScriptedModel([calls(*typos)])))
        assert (result.decided_by, read_bodies(context)) == ("rules", [f"{FACT}\n".encode()])


def test_model_that_sees_its_escape_still_fails(tmp_path):
    policy = strict(require="none", on_escape="refuse")
    with made(tmp_path, policy, on_model_failure="rules") as context:
        model = ScriptedModel([calls(write_call("user/../a.md")), say("Saved.")])
        assert remembering(context, FACT, model).error.code == "remember_path_escape"
        model = ScriptedModel(
            [calls(write_call("user/../a.md")), calls(write_call(content=FACT)), say("Saved.")]
        )
        assert done(remembering(context, FACT, model)).decided_by == "scripted"


def test_model_failure_note_names_the_error_and_a_fix(tmp_path):
    model = ScriptedModel([calls(write_call("user/shed")), say("Saved.")])
    with made(tmp_path, on_model_failure="rules") as context:
        (note,) = done(remembering(context, FACT, model)).notes
        for part in (
            "the model scripted failed",
            "does not end with .md",
            "the rules stored",
            "--protocol decide",
        ):
            assert part in note
    for steps, code in (([calls(write_call("user/shed"))], "refused"), ([say("No.")], "no_update")):
        with opened(make_roots(tmp_path / code)) as context:
            error = remembering(context, FACT, ScriptedModel([*steps, say("Saved.")])).error
            assert error.code == f"remember_{code}"
            assert "the model scripted failed" in str(error)
            assert "muniment doctor" in str(error)
