"""Arguments as clients send them: a table of operations with seven kinds of arguments, run on each surface.

Each call succeeds or returns an error that names the wrong argument, and the server continues.
"""

import io
import json
from contextlib import ExitStack
from datetime import date

import pytest

from kit.cli.process import launch
from kit.mcp import RawHost
from kit.server.process import BASE
from muniment.client.errors import Problem
from muniment.errors import BadArguments
from muniment.server.acp import BASE as ACP

HALF = "\ud83d"
"""Half of an emoji, as a client sends it that cuts a text inside one."""

FACT = "We deploy on Thursdays"

# Operation, case, arguments, and the result: `done`, or the name in the error. Names are those of HTTP and
# ACP.
TABLE = [
    ("remember", "null", {"content": FACT, "scope": None, "expires": None}, "done"),
    ("remember", "5.0", {"content": 5.0}, "content"),
    ("remember", '"5"', {"content": FACT, "scope": "5"}, "scope"),
    ("remember", "extra", {"content": FACT, "colour": 1}, "colour"),
    ("remember", "missing", {}, "content"),
    ("remember", "empty", {"content": " "}, "empty"),
    ("remember", "half", {"content": f"{FACT} in autumn {HALF}"}, "done"),
    ("recall", "null", {"query": FACT, "limit": None}, "done"),
    ("recall", "5.0", {"query": FACT, "limit": 5.0}, "done"),
    ("recall", '"5"', {"query": FACT, "limit": "5"}, "limit"),
    ("recall", "extra", {"query": FACT, "colour": 1}, "colour"),
    ("recall", "missing", {}, "query"),
    ("recall", "empty", {"query": ""}, "describe what to recall"),
    ("recall", "half", {"query": f"{FACT} {HALF}"}, "done"),
    ("forget", "null", {"query": "the moon base", "dryRun": True, "digest": None}, "done"),
    ("forget", "5.0", {"query": "the moon base", "dryRun": True, "digest": 5.0}, "digest"),
    ("forget", '"5"', {"query": "the moon base", "dryRun": "5"}, "dryRun"),
    ("forget", "extra", {"query": "the moon base", "dryRun": True, "colour": 1}, "colour"),
    ("forget", "missing", {"dryRun": True}, "query"),
    ("forget", "empty", {"query": "", "dryRun": True}, "what to forget"),
    ("forget", "half", {"query": f"the moon base {HALF}", "dryRun": True}, "done"),
    ("dream", "null", {"colour": None}, "done"),
    ("dream", "extra", {"colour": 1}, "colour"),
    ("undo", "null", {"taskId": None}, "taskId"),
    ("undo", "5.0", {"taskId": 5.0}, "taskId"),
    ("undo", "extra", {"taskId": "remember-x", "colour": 1}, "colour"),
    ("undo", "missing", {}, "taskId"),
    ("edit", "null", {"path": "user/no.md", "text": "a", "digest": None, "dryRun": None}, "not_found"),
    ("edit", "5.0", {"path": 5.0, "text": "a"}, "path"),
    ("edit", '"5"', {"path": "user/no.md", "text": "a", "dryRun": "5"}, "dryRun"),
    ("edit", "extra", {"path": "user/no.md", "text": "a", "colour": 1}, "colour"),
    ("edit", "missing", {"path": "user/no.md"}, "text"),
    ("edit", "empty", {"path": "", "text": "a"}, "bad_name"),
    ("edit", "half", {"path": f"user/{HALF}.md", "text": HALF}, "not_found"),
    ("pin", "null", {"path": None}, "path"),
    ("pin", "5.0", {"path": 5.0}, "path"),
    ("pin", '"5"', {"path": "user/no.md", "dryRun": "5"}, "dryRun"),
    ("pin", "extra", {"path": "user/no.md", "colour": 1}, "colour"),
    ("pin", "missing", {"dryRun": True}, "path"),
    ("index", "null", {"dryRun": None}, "done"),
    ("index", "5.0", {"dryRun": 5.0}, "dryRun"),
    ("index", "extra", {"colour": 1}, "colour"),
    ("show", "null", {"path": None}, "path"),
    ("show", "5.0", {"path": 5.0}, "path"),
    ("show", "extra", {"path": "user/a.md", "colour": 1}, "colour"),
    ("show", "missing", {}, "path"),
    ("show", "empty", {"path": ""}, "the path is empty"),
    ("show", "half", {"path": f"user/{HALF}.md"}, "not_found"),
    ("history", "null", {"path": None}, "done"),
    ("history", "5.0", {"path": 5.0}, "path"),
    ("history", "extra", {"colour": 1}, "colour"),
    ("history", "empty", {"path": ""}, "done"),
]
MCP_NAMES = {"query": "description", "dryRun": "yes", "taskId": "task_id"}


def to_mcp_names(operation, arguments):
    """Return the arguments with their names in the MCP tools; omit those that the tools do not have."""
    if operation == "recall":
        return arguments
    renamed = {MCP_NAMES.get(name, name): value for name, value in arguments.items() if name != "expires"}
    if renamed.get("yes") is True:
        del renamed["yes"]
    return renamed


POSTED = ("remember", "recall", "forget", "dream", "undo", "edit", "pin", "index")
"""Operations whose arguments HTTP takes in a body."""

QUERIES = [  # The query, and the name in the answer.
    ("entries?limit=2.0&scope=user", "done"),
    ("entries?limit=0", "limit"),
    ("entries?limit=1001", "limit"),
    ("entries?limit=five", "limit"),
    ("entries?scope=galaxy", "scope"),
    ("entries?colour=1", "unknown field"),
    ("entries?limit=1&limit=2", "twice"),
    ("entries?expired=perhaps", "expired"),
    ("entries?cursor=%F0%9F", "done"),
    ("entry", "path"),
    ("entry?path=", "bad_name"),
    ("entry?path=%00", "path_escape"),
    ("entry?path=user/no.md&colour=1", "unknown field"),
    ("export?format=zip", "format"),
    ("export?scope=", "scope"),
    ("history?path=user", "done"),
    ("why", "path"),
]


def call_http(daemon, operation, arguments):
    answer = daemon.send_request("POST", f"{BASE}/{operation}", body=arguments)
    return "done" if answer.status in {200, 202} else json.dumps(answer.json)


def to_http_names(row):
    """Return a row with the error of HTTP, which does not repeat an unknown name."""
    return (*row[:3], "unknown field") if row[3] == "colour" else row


def select_rows(*operations):
    return [row for row in TABLE if row[0] in operations]


def find_wrong(answers):
    """Return the rows whose answer is not the expected one, with the answer."""
    return [
        (operation, case, expected, answer)
        for (operation, case, _, expected), answer in answers
        if (expected == "done") != (answer == "done") or expected not in answer
    ]


def test_http_arguments_get_answers_that_name_them(start_http):
    daemon = start_http()
    found = [to_http_names(row) for row in select_rows(*POSTED)]
    assert find_wrong((row, call_http(daemon, row[0], row[2])) for row in found) == []
    answer = daemon.send_request("POST", f"{BASE}/recall", body={"query": FACT, "limit": "5"}).json
    assert (answer["code"], answer["field"]) == ("invalid_request", "limit")
    deep = b'{"query": ' + b"[" * 900 + b'"\\ud83d"' + b"]" * 900 + b"}"
    assert daemon.send_request("POST", f"{BASE}/recall", body=deep).status == 400
    daemon.assert_healthy()


def test_http_queries_get_answers_that_name_them(start_http):
    daemon = start_http()
    for query, named in QUERIES:
        answer = daemon.send_request("GET", f"{BASE}/{query}")
        result = "done" if answer.status == 200 else json.dumps(answer.json)
        assert named in result, (query, result)
    for scope, status in (("user", 200), (None, 200), ("galaxy", 400)):
        assert (
            daemon.send_request("POST", f"{BASE}/recall", body={"query": FACT, "scope": scope}).status
            == status
        )
    daemon.assert_healthy()


def test_client_arguments_get_answers_that_name_them(start_http):
    daemon = start_http()
    client = daemon.open_client()
    assert client.recall(FACT, limit=None).error is None
    assert client.recall(FACT, limit=5.0).error is None
    assert client.recall(f"{FACT} {HALF}").error is None
    with pytest.raises(Problem, match="describe what to recall"):
        client.recall("")
    with pytest.raises(Problem, match="expires"):
        client.remember(FACT, expires=date(2020, 1, 1))
    check_argument_errors(client)
    daemon.assert_healthy()


WRONG = [
    *(
        ("remember", {"content": None}, "content is missing"),
        ("remember", {"content": 5}, "content must be a"),
    ),
    *(("forget", {"query": None}, "query is missing"), ("recall", {"query": None}, "query is missing")),
    *(("show", {"path": None}, "path is missing"), ("show", {"path": 5}, "path must be a string, not int")),
    *(("edit", {"path": "user/a.md", "text": None}, "text is missing"), ("why", {"path": None}, "path")),
    *(("pin", {"path": None}, "path is missing"), ("undo", {"task_id": None}, "task_id is missing")),
    *(("review", {"review_id": None}, "review_id"), ("reject", {"review_id": None}, "review_id is missing")),
    *(("approve", {"review_id": "1", "digest": None}, "digest"), ("erase", {"target": None}, "target is")),
    *(("explain", {"verb": None, "path": "user/a.md"}, "verb"), ("history", {"path": 5}, "path must be")),
    *(("dream", {"scope": 5}, "scope must be"), ("export", {"file": None, "format": 5}, "format must be")),
    *(("recall", {"query": FACT, "limit": each}, "limit .* 1 to 20") for each in (-1, 0, 21, 10**400)),
    *(
        ("recall", {"query": FACT, "limit": each}, "limit .* whole")
        for each in ("5", 1.5, True, float("inf"))
    ),
    *(("list", {"limit": each}, "limit .* 1 or more") for each in (-1, 0)),
    *(("list", {"limit": each}, "limit .* whole number") for each in ("5", 1.5, float("nan"))),
]
"""Operation, arguments, and the error: the same of the library and of a client."""


def check_argument_errors(surface):
    for operation, arguments, named in WRONG:
        with pytest.raises(BadArguments, match=named):
            getattr(surface, operation)(**arguments)


def test_client_none_is_the_default_of_optional_arguments(start_http):
    client = start_http().open_client()
    result = client.remember(FACT, scope=None, context=None, trust=None, ref=None, expires=None).wait(60)
    (path,) = result.files_touched
    found = client.recall(FACT, exclude=None, scope=None, limit=None)
    assert [each.path for each in found.entries] == [path]
    assert client.export(io.BytesIO(), scope=None, format=None).entries == 1
    assert client.list(None, limit=None, expired=None).entries[0].trust == "owner"
    assert client.dream(scope=None, dry_run=None).wait(60).deduped_entries == 0
    later = client.remember("The oboe is in the attic", expires=date(2090, 1, 1)).wait(60)
    assert later.expires == "2090-01-01"


META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def read_tool_outcome(answer):
    if "error" in answer:
        return json.dumps(answer["error"])
    result = answer["result"]
    return result["content"][0]["text"] if result.get("isError") else "done"


def to_mcp_row(row):
    operation, case, arguments, expected = row
    name = expected if operation == "recall" else MCP_NAMES.get(expected, expected)
    return operation, case, to_mcp_names(operation, arguments), name


MCP_ROWS = [to_mcp_row(row) for row in select_rows("remember", "recall", "forget", "undo", "show", "history")]


def test_mcp_over_http_arguments_get_answers(start_http):
    daemon = start_http()
    headers = ("Accept: application/json, text/event-stream", "Mcp-Protocol-Version: 2026-07-28")

    def call(operation, arguments):
        params = {"_meta": META, "name": operation, "arguments": arguments}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        named = (*headers, "Mcp-Method: tools/call", f"Mcp-Name: {operation}")
        answer = daemon.send_request("POST", "/mcp", *named, body=body)
        return read_tool_outcome(json.loads((b"\n" + answer.body).partition(b"\ndata: ")[2] or answer.body))

    assert find_wrong((row, call(row[0], row[2])) for row in MCP_ROWS) == []
    daemon.assert_healthy()


def test_mcp_stdio_arguments_get_answers(tmp_path):
    (tmp_path / "work" / ".git").mkdir(parents=True)
    home = {"MUNIMENT_HOME": str(tmp_path / "home")}
    host = RawHost(f"--workspace={tmp_path / 'work'}", "--trust=owner", **home)
    with ExitStack() as ending:
        ending.callback(host.process.communicate)
        host.handshake()

        def call(number, operation, arguments):
            params = {"name": operation, "arguments": arguments}
            host.send({"id": number, "method": "tools/call", "params": params})
            while (answer := host.read_message()).get("id") != number:
                assert "method" in answer
            return read_tool_outcome(answer)

        answers = [(row, call(number, row[0], row[2])) for number, row in enumerate(MCP_ROWS, 10)]
        assert find_wrong(answers) == []
        assert host.process.poll() is None


def test_acp_arguments_get_answers_that_name_them(tmp_path):
    process = launch(tmp_path, "acp")
    with ExitStack() as ending:
        ending.callback(process.communicate)

        def call(number, operation, arguments):
            request = {"jsonrpc": "2.0", "id": number, "method": f"_{ACP}/{operation}", "params": arguments}
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            assert answer["id"] == number
            return "done" if "result" in answer else json.dumps(answer["error"])

        found = [to_http_names(row) for row in select_rows("remember", "forget", "dream")]
        assert find_wrong((row, call(number, row[0], row[2])) for number, row in enumerate(found)) == []
        assert process.poll() is None


def test_library_arguments_get_answers_that_name_them(open_memory):
    library = open_memory()
    (path,) = library.remember(f"{FACT} {HALF}").files_touched
    assert "\ufffd" in library.context.read_file(library.context.resolve_path(path)).decode()
    for limit in (None, 5, 5.0):
        assert [each.path for each in library.recall(FACT, limit=limit, budget=None).entries] == [path]
    check_argument_errors(library)
    for trust in "zz", 5:
        with pytest.raises(BadArguments, match=f"unknown trust {trust!r}; use one of owner"):
            library.remember(FACT, trust=trust)
    assert "describe what to recall" in str(library.recall(" ").error)
    assert library.recall(f"{FACT} {HALF}").error is None


def test_library_none_is_the_default_of_optional_arguments(open_memory):
    library = open_memory()
    options = dict.fromkeys(("scope", "context", "trust", "dry_run", "task_id", "detail", "expires"))
    result = library.remember(FACT, **options)
    assert (result.status, result.trust) == ("completed", "owner")
    found = library.recall(FACT, exclude=None, scope=None, limit=None, budget=None, choose=None)
    assert [each.path for each in found.entries] == list(result.files_touched)
    assert library.export(io.BytesIO(), scope=None, format=None).entries == 1
    assert len(library.list(None, limit=None, expired=None).entries) == 1
    assert library.dream(scope=None, dry_run=None, attended=None).status == "completed"
    assert library.forget("zebra", scope=None, dry_run=None, digest=None).status == "completed"


def test_command_line_arguments_get_answers(run_command):
    for fact in ("- a bullet about deploys", "-5 degrees is too cold for the vine"):
        assert run_command("remember", fact)[0] == 0, fact
    assert run_command("remember", f"{FACT} {HALF}")[0] == 0
    assert run_command("recall", FACT, "--limit", "5.0") == run_command("recall", FACT, "--limit=5")
    for arguments, named in (
        (("recall", ""), "describe what to recall"),
        (("recall", FACT, "--limit", "five"), "--limit"),
        (("recall", FACT, "--limit", "5.5"), "--limit"),
        (("recall", FACT, "--colour", "1"), "--colour"),
        (("remember",), "FACT"),
        (("remember", " "), "empty"),
    ):
        code, output = run_command(*arguments)
        assert (code != 0, named.lower() in output.lower()) == (True, True), (arguments, output)


def test_show_accepts_address_of_entry(run_command, open_memory):
    (path,) = open_memory().remember("We deploy on Thursdays").files_touched
    result = run_command("show", path)
    assert result[0] == 0
    assert run_command("show", f"muniment://{path}") == result
    assert run_command("show", f"muniment://{path.replace('-', '%2D')}") == result
    assert run_command("show", "muniment://user/../../etc/passwd")[0] != 0


def test_too_small_recall_budget_error_names_minimum(open_memory):
    library = open_memory()
    library.remember(FACT)
    error = library.recall(FACT, budget=20).error
    least = int(str(error).split()[-1])
    assert str(error) == f"the budget of 20 tokens is too small for one entry; use at least {least}"
    assert library.recall(FACT, budget=least).entries
    assert library.recall(FACT, budget=least - 1).error is not None


def test_recall_uses_question_after_tagged_block(open_memory):
    library = open_memory()
    (path,) = library.remember(FACT).files_touched
    question = "when do we deploy?"
    for block in (
        "<context>the file main.py is open</context>",
        "<context>\n- branch: main\n- editor: code\n</context>\n",
        '<file name="a.py">print(1)</file> <note>be brief</note>',
        "<system-reminder>zebras live elsewhere</system-reminder>\n\n",
        "<context>",
    ):
        found = library.recall(f"{block} {question}").entries
        assert [each.path for each in found] == [path], block
    assert library.recall(f"<context>{question}</context>").entries
