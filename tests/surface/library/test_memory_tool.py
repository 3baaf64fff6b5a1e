"""The memory tool of the anthropic SDK over a memory: what a model asks and is told, and what stands then."""

import threading

import anyio
import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit import anthropics
from kit.raising import raised
from kit.where import REPOSITORY
from muniment.content.entry import parse
from muniment.errors import InvalidScope

NOTES = "/memories/user/notes.md"
TEXT = "# Editor\n\nPrefers dark mode in all editors.\n"


def asked(tool, command, path=NOTES, **arguments):
    return tool.call({"command": command, "path": path, **arguments})


def refused(tool, command, path=NOTES, **arguments):
    return raised(anthropics.ToolError, asked, tool, command, path, **arguments).content


def shown(text, path=NOTES):
    lines = "\n".join(f"{number:6}\t{line}" for number, line in enumerate(text.split("\n"), 1))
    return f"Here's the content of {path} with line numbers:\n{lines}"


def test_a_text_is_viewed_as_it_was_created_found_by_recall_and_taken_back_by_undo(memory, tmp_path):
    opened = memory()
    tool = anthropics.MunimentMemoryTool(opened)
    assert asked(tool, "create", file_text=TEXT) == f"File created successfully at: {NOTES}"
    assert asked(tool, "view") == shown(TEXT)
    entry = parse((tmp_path / "home" / "user" / "notes.md").read_bytes())
    assert (entry.name, entry.description, entry.type) == (
        "Editor",
        "Prefers dark mode in all editors.",
        "user",
    )
    assert entry.body == TEXT
    (found,) = opened.recall("which mode in editors?").entries
    assert (found.path, found.trust) == ("user/notes.md", "agent")
    (step,) = opened.history()
    assert (step.path, step.kind, step.decided_by) == ("user/notes.md", "new", "agent")
    opened.undo(step.task)
    assert refused(tool, "view") == f"The path {NOTES} does not exist. Please provide a valid path."


def test_edits_count_lines_of_the_text_alone_and_keep_the_id_of_the_entry(memory, tmp_path):
    opened = memory()
    tool, file = anthropics.MunimentMemoryTool(opened), tmp_path / "home" / "user" / "notes.md"
    asked(tool, "create", file_text=TEXT)
    first = parse(file.read_bytes()).muniment
    edited = asked(tool, "str_replace", old_str="dark", new_str="light")
    assert edited == (
        "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n"
        "     1\t# Editor\n     2\t\n     3\tPrefers light mode in all editors.\n     4\t"
    )
    assert asked(tool, "insert", insert_line=0, insert_text="top") == f"The file {NOTES} has been edited."
    assert asked(tool, "view", view_range=[1, 2]) == shown("top\n# Editor")
    moved = tool.call({"command": "rename", "old_path": NOTES, "new_path": "/memories/user/ed/tor.md"})
    assert moved == f"Successfully renamed {NOTES} to /memories/user/ed/tor.md"
    last = parse((tmp_path / "home" / "user" / "ed" / "tor.md").read_bytes()).muniment
    assert (last["id"], last["created"]) == (first["id"], first["created"])
    assert not file.exists()
    assert len({step.task for step in opened.history()}) == 4
    opened.undo(opened.history()[0].task)
    assert "light" in file.read_text()


def test_memories_lists_the_scopes_and_what_stands_two_levels_below(memory):
    opened = memory()
    tool = anthropics.MunimentMemoryTool(opened)
    for path in ("user/a.md", "user/t/b.md", "project/c.md"):
        asked(tool, "create", f"/memories/{path}", file_text="x")
    head, *lines = asked(tool, "view", "/memories").split("\n")
    assert head == (
        "Here're the files and directories up to 2 levels deep in /memories, "
        "excluding hidden items and node_modules:"
    )
    assert [line.split("\t")[1] for line in lines] == [
        *("/memories", "/memories/project/", "/memories/project/c.md"),
        *("/memories/user/", "/memories/user/a.md", "/memories/user/t/"),
    ]
    assert "/memories/user/t/b.md" in asked(tool, "view", "/memories/user")
    one = anthropics.MunimentMemoryTool(opened, scope="user")
    assert [line.split("\t")[1] for line in asked(one, "view", "/memories/").split("\n")[1:]] == [
        *("/memories", "/memories/a.md", "/memories/t/", "/memories/t/b.md"),
    ]


def test_what_is_refused_says_what_to_do(memory):
    tool = anthropics.MunimentMemoryTool(memory())
    asked(tool, "create", file_text="one\ntwo\none\n")
    here = "Not done: the path must begin with /memories/user/ or /memories/project/"
    twice = "Multiple occurrences of old_str `one` in lines: 1, 3. Please ensure it is unique"
    for said, command, path, arguments in (
        (f"File {NOTES} already exists", "create", NOTES, {"file_text": "x"}),
        (here, "create", "/memories/notes.md", {"file_text": "x"}),
        (
            "Not done: the name of a file must end in .md, such as /memories/user/b.md",
            *("create", "/memories/user/b.txt", {"file_text": "x"}),
        ),
        ("Path must start with /memories, got: /memoriesX", "view", "/memoriesX", {}),
        (
            f"No replacement was performed, old_str `six` did not appear verbatim in {NOTES}.",
            *("str_replace", NOTES, {"old_str": "six", "new_str": ""}),
        ),
        (
            f"No replacement was performed. {twice}",
            *("str_replace", NOTES, {"old_str": "one", "new_str": ""}),
        ),
        (
            "Invalid `insert_line` parameter: 4. It should be within the range [0, 3].",
            *("insert", NOTES, {"insert_line": 4, "insert_text": ""}),
        ),
        (
            "The path /memories/user is not a file.",
            "str_replace",
            "/memories/user",
            {"old_str": "a", "new_str": "b"},
        ),
        ("Cannot delete the /memories directory itself", "delete", "/memories/sub/..", {}),
        ("Cannot delete the /memories/user directory itself", "delete", "/memories/user", {}),
        ("Not done: path: is not a string. view accepts path, view_range (optional)", "view", 7, {}),
        (
            "Not done: unknown argument size. view accepts path, view_range (optional)",
            *("view", NOTES, {"size": 1}),
        ),
        (
            "Not done: unknown command; use one of view, create, str_replace, insert, delete, rename",
            *("burn", NOTES, {}),
        ),
    ):
        assert refused(tool, command, path, **arguments) == said
    assert raised(InvalidScope, anthropics.MunimentMemoryTool, memory(), scope="team")


def test_a_directory_goes_and_moves_whole_if_it_is_small(memory):
    opened = memory()
    tool = anthropics.MunimentMemoryTool(opened)
    for number in range(6):
        asked(tool, "create", f"/memories/user/t/{number}.md", file_text="x")
    told = "/memories/user/t contains 6 files, and one call may delete 5; use several calls"
    assert refused(tool, "delete", "/memories/user/t") == told
    asked(tool, "delete", "/memories/user/t/5.md")
    tool.call({"command": "rename", "old_path": "/memories/user/t", "new_path": "/memories/project/u"})
    assert refused(tool, "view", "/memories/user/t").endswith("Please provide a valid path.")
    assert asked(tool, "delete", "/memories/project/u") == "Successfully deleted /memories/project/u"
    opened.undo(opened.history()[0].task)
    assert "/memories/project/u/4.md" in asked(tool, "view", "/memories/project/u")


def test_a_name_that_differs_in_case_alone_is_no_other_name(memory):
    tool = anthropics.MunimentMemoryTool(memory())
    asked(tool, "create", file_text="x")
    upper = "/memories/user/Notes.md"
    with pytest.raises(anthropics.ToolError) as caught:
        tool.call({"command": "rename", "old_path": NOTES, "new_path": upper})
    assert caught.value.content == f"{upper} differs from {NOTES} only in case; use another name"


@pytest.mark.slow
@given(
    text=st.text(
        st.characters(exclude_categories=["Cs", "Cc", "Cf", "Co", "Cn", "Mn"], include_characters="\n-:")
    )
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_that_is_taken_is_viewed_again_as_it_was(memory, text):
    tool = anthropics.MunimentMemoryTool(memory())
    try:
        asked(tool, "create", file_text=text)
    except anthropics.ToolError:
        return
    finally_shown = asked(tool, "view")
    asked(tool, "delete")
    assert finally_shown == shown(text)


def test_a_policy_that_leaves_secrets_out_has_the_model_told(memory, tmp_path):
    text = (
        (REPOSITORY / "policies" / "strict.toml")
        .read_text()
        .replace('secrets = "reject"', 'secrets = "redact"')
        .replace('name = "strict"', 'name = "redacting"')
    )
    (tmp_path / "redacting.toml").write_text(text)
    tool = anthropics.MunimentMemoryTool(memory(policy=tmp_path / "redacting.toml"))
    told = "\nA possible secret was removed."
    assert asked(tool, "create", file_text="the password is hunter2hunter2").endswith(told)
    assert "hunter2" not in asked(tool, "view")
    assert asked(tool, "str_replace", old_str="the", new_str="hunter2hunter2 was my password; the").endswith(
        told
    )
    assert "hunter2" not in asked(tool, "view")


FRONT = ("---\nname: mine\n---\nbody\n", "", "a\r\nb\r\n")


def test_front_matter_that_a_model_writes_is_text_like_any_other(memory):
    tool = anthropics.MunimentMemoryTool(memory())
    for text in FRONT:
        asked(tool, "create", file_text=text)
        assert asked(tool, "view") == shown(text)
        asked(tool, "insert", insert_line=0, insert_text="---")
        assert asked(tool, "view") == shown(f"---\n{text}")
        asked(tool, "delete")


def scripted(*inputs):
    """What a client speaks to whose model makes these calls, one a turn; what it was sent is in the list."""
    sent, left = [], list(inputs)

    def answer(request):
        sent.append(request.read().decode())
        use = (
            {"type": "tool_use", "id": f"call-{len(left)}", "name": "memory", "input": left.pop(0)}
            if left
            else None
        )
        return httpx2.Response(
            200,
            json={
                "id": "m",
                "type": "message",
                "role": "assistant",
                "model": "scripted",
                "content": [use or {"type": "text", "text": "done"}],
                "stop_sequence": None,
                "stop_reason": "tool_use" if use else "end_turn",
                "usage": {"input_tokens": 1, "output_tokens": 1},
            },
        )

    return httpx2.MockTransport(answer), sent


CALLS = (
    {"command": "create", "path": "/memories/user/../../x.md", "file_text": "x"},
    {"command": "create", "path": NOTES, "file_text": TEXT},
)
TERMS = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}


def run_by_the_sdk(opened, transport):
    from anthropic import Anthropic

    client = Anthropic(api_key="k", http_client=httpx2.Client(transport=transport))
    client.beta.messages.tool_runner(**TERMS, tools=[anthropics.MunimentMemoryTool(opened)]).until_done()


def run_by_the_asynchronous_sdk(opened, transport):
    from anthropic import AsyncAnthropic

    async def play():
        client = AsyncAnthropic(api_key="k", http_client=httpx2.AsyncClient(transport=transport))
        await client.beta.messages.tool_runner(
            **TERMS, tools=[anthropics.AsyncMunimentMemoryTool(opened)]
        ).until_done()

    anyio.run(play)


@pytest.mark.slow
@pytest.mark.parametrize("run", [run_by_the_sdk, run_by_the_asynchronous_sdk])
def test_the_runner_of_the_sdk_is_answered_and_told_of_an_escape_without_an_exception(memory, caplog, run):
    opened = memory()
    transport, sent = scripted(*CALLS)
    run(opened, transport)
    assert "would escape /memories directory" in sent[1]
    assert '"is_error":true' in sent[1]
    assert f"File created successfully at: {NOTES}" in sent[2]
    assert not caplog.records
    assert asked(anthropics.MunimentMemoryTool(opened), "view") == shown(TEXT)


def test_the_asynchronous_tool_lets_the_loop_run_and_writes_nothing_once_it_is_cancelled(memory):
    tool, turns = anthropics.AsyncMunimentMemoryTool(memory()), []

    async def play():
        await tool.call({"command": "create", "path": NOTES, "file_text": TEXT})
        assert await tool.call({"command": "view", "path": NOTES}) == shown(TEXT)
        with tool._directory._lock:
            async with anyio.create_task_group() as group:
                group.start_soon(tool.call, {"command": "delete", "path": NOTES})
                for _ in range(10):
                    await anyio.lowlevel.checkpoint()
                    turns.append(1)
                group.cancel_scope.cancel()
        assert await tool.call({"command": "view", "path": NOTES}) == shown(TEXT)

    anyio.run(play)
    for thread in threading.enumerate():
        if thread.name.startswith("AnyIO"):
            thread.join()  # Also that of the command that was cancelled.
    assert len(turns) == 10
