"""The memory tool of the anthropic SDK over a memory: commands of a model, their results and the stored
entries.
"""

import threading

import anyio
import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit import anthropics
from kit.catching import catch_error
from kit.locations import REPOSITORY
from muniment.content.entry import parse
from muniment.errors import InvalidScope

NOTES = "/memories/user/notes.md"
TEXT = "# Editor\n\nPrefers dark mode in all editors.\n"


def run_command(tool, command, path=NOTES, **arguments):
    return tool.call({"command": command, "path": path, **arguments})


def run_rejected(tool, command, path=NOTES, **arguments):
    return catch_error(anthropics.ToolError, run_command, tool, command, path, **arguments).content


def format_view(text, path=NOTES):
    lines = "\n".join(f"{number:6}\t{line}" for number, line in enumerate(text.split("\n"), 1))
    return f"Here's the content of {path} with line numbers:\n{lines}"


def test_created_text_is_viewed_recalled_and_undone(open_memory, tmp_path):
    opened = open_memory()
    tool = anthropics.MunimentMemoryTool(opened)
    assert run_command(tool, "create", file_text=TEXT) == f"File created successfully at: {NOTES}"
    assert run_command(tool, "view") == format_view(TEXT)
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
    assert run_rejected(tool, "view") == f"The path {NOTES} does not exist. Please provide a valid path."


def test_edits_count_body_lines_and_keep_entry_id(open_memory, tmp_path):
    opened = open_memory()
    tool, file = anthropics.MunimentMemoryTool(opened), tmp_path / "home" / "user" / "notes.md"
    run_command(tool, "create", file_text=TEXT)
    first = parse(file.read_bytes()).muniment
    edited = run_command(tool, "str_replace", old_str="dark", new_str="light")
    assert edited == (
        "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n"
        "     1\t# Editor\n     2\t\n     3\tPrefers light mode in all editors.\n     4\t"
    )
    assert (
        run_command(tool, "insert", insert_line=0, insert_text="top") == f"The file {NOTES} has been edited."
    )
    assert run_command(tool, "view", view_range=[1, 2]) == format_view("top\n# Editor")
    moved = tool.call({"command": "rename", "old_path": NOTES, "new_path": "/memories/user/ed/tor.md"})
    assert moved == f"Successfully renamed {NOTES} to /memories/user/ed/tor.md"
    last = parse((tmp_path / "home" / "user" / "ed" / "tor.md").read_bytes()).muniment
    assert (last["id"], last["created"]) == (first["id"], first["created"])
    assert not file.exists()
    assert len({step.task for step in opened.history()}) == 4
    opened.undo(opened.history()[0].task)
    assert "light" in file.read_text()


def test_view_of_memories_lists_scopes_two_levels_deep(open_memory):
    opened = open_memory()
    tool = anthropics.MunimentMemoryTool(opened)
    for path in ("user/a.md", "user/t/b.md", "project/c.md"):
        run_command(tool, "create", f"/memories/{path}", file_text="x")
    head, *lines = run_command(tool, "view", "/memories").split("\n")
    assert head == (
        "Here're the files and directories up to 2 levels deep in /memories, "
        "excluding hidden items and node_modules:"
    )
    assert [line.split("\t")[1] for line in lines] == [
        *("/memories", "/memories/project/", "/memories/project/c.md"),
        *("/memories/user/", "/memories/user/a.md", "/memories/user/t/"),
    ]
    assert "/memories/user/t/b.md" in run_command(tool, "view", "/memories/user")
    one = anthropics.MunimentMemoryTool(opened, scope="user")
    assert [line.split("\t")[1] for line in run_command(one, "view", "/memories/").split("\n")[1:]] == [
        *("/memories", "/memories/a.md", "/memories/t/", "/memories/t/b.md"),
    ]


def test_rejected_command_explains_remedy(open_memory):
    tool = anthropics.MunimentMemoryTool(open_memory())
    run_command(tool, "create", file_text="one\ntwo\none\n")
    here = "Not done: the path must begin with /memories/user/ or /memories/project/"
    twice = "Multiple occurrences of old_str `one` in lines: 1, 3. Please ensure it is unique"
    for message, command, path, arguments in (
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
        assert run_rejected(tool, command, path, **arguments) == message
    assert catch_error(InvalidScope, anthropics.MunimentMemoryTool, open_memory(), scope="team")


def test_small_directory_is_deleted_and_moved_whole(open_memory):
    opened = open_memory()
    tool = anthropics.MunimentMemoryTool(opened)
    for number in range(6):
        run_command(tool, "create", f"/memories/user/t/{number}.md", file_text="x")
    message = "/memories/user/t contains 6 files, and one call may delete 5; use several calls"
    assert run_rejected(tool, "delete", "/memories/user/t") == message
    run_command(tool, "delete", "/memories/user/t/5.md")
    tool.call({"command": "rename", "old_path": "/memories/user/t", "new_path": "/memories/project/u"})
    assert run_rejected(tool, "view", "/memories/user/t").endswith("Please provide a valid path.")
    assert run_command(tool, "delete", "/memories/project/u") == "Successfully deleted /memories/project/u"
    opened.undo(opened.history()[0].task)
    assert "/memories/project/u/4.md" in run_command(tool, "view", "/memories/project/u")


def test_rename_that_differs_only_in_case_is_rejected(open_memory):
    tool = anthropics.MunimentMemoryTool(open_memory())
    run_command(tool, "create", file_text="x")
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
def test_accepted_text_is_viewed_unchanged(open_memory, text):
    tool = anthropics.MunimentMemoryTool(open_memory())
    try:
        run_command(tool, "create", file_text=text)
    except anthropics.ToolError:
        return
    view = run_command(tool, "view")
    run_command(tool, "delete")
    assert view == format_view(text)


def test_redacted_secret_is_reported_to_model(open_memory, tmp_path):
    text = (
        (REPOSITORY / "policies" / "strict.toml")
        .read_text()
        .replace('secrets = "reject"', 'secrets = "redact"')
        .replace('name = "strict"', 'name = "redacting"')
    )
    (tmp_path / "redacting.toml").write_text(text)
    tool = anthropics.MunimentMemoryTool(open_memory(policy=tmp_path / "redacting.toml"))
    notice = "\nA possible secret was removed."
    assert run_command(tool, "create", file_text="the password is hunter2hunter2").endswith(notice)
    assert "hunter2" not in run_command(tool, "view")
    assert run_command(
        tool, "str_replace", old_str="the", new_str="hunter2hunter2 was my password; the"
    ).endswith(notice)
    assert "hunter2" not in run_command(tool, "view")


FRONT = ("---\nname: mine\n---\nbody\n", "", "a\r\nb\r\n")


def test_front_matter_from_model_is_stored_as_text(open_memory):
    tool = anthropics.MunimentMemoryTool(open_memory())
    for text in FRONT:
        run_command(tool, "create", file_text=text)
        assert run_command(tool, "view") == format_view(text)
        run_command(tool, "insert", insert_line=0, insert_text="---")
        assert run_command(tool, "view") == format_view(f"---\n{text}")
        run_command(tool, "delete")


def make_transport(*inputs):
    """Return a transport whose model makes these calls, one per turn, and the list of its requests."""
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
MESSAGE_OPTIONS = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}


def run_with_sdk(opened, transport):
    from anthropic import Anthropic

    client = Anthropic(api_key="k", http_client=httpx2.Client(transport=transport))
    client.beta.messages.tool_runner(
        **MESSAGE_OPTIONS, tools=[anthropics.MunimentMemoryTool(opened)]
    ).until_done()


def run_with_async_sdk(opened, transport):
    from anthropic import AsyncAnthropic

    async def play():
        client = AsyncAnthropic(api_key="k", http_client=httpx2.AsyncClient(transport=transport))
        await client.beta.messages.tool_runner(
            **MESSAGE_OPTIONS, tools=[anthropics.AsyncMunimentMemoryTool(opened)]
        ).until_done()

    anyio.run(play)


@pytest.mark.slow
@pytest.mark.parametrize("run", [run_with_sdk, run_with_async_sdk])
def test_sdk_runner_receives_escape_as_tool_error(open_memory, caplog, run):
    opened = open_memory()
    transport, sent = make_transport(*CALLS)
    run(opened, transport)
    assert "would escape /memories directory" in sent[1]
    assert '"is_error":true' in sent[1]
    assert f"File created successfully at: {NOTES}" in sent[2]
    assert not caplog.records
    assert run_command(anthropics.MunimentMemoryTool(opened), "view") == format_view(TEXT)


def test_async_tool_does_not_block_loop_and_can_be_cancelled(open_memory):
    tool, turns = anthropics.AsyncMunimentMemoryTool(open_memory()), []

    async def play():
        await tool.call({"command": "create", "path": NOTES, "file_text": TEXT})
        assert await tool.call({"command": "view", "path": NOTES}) == format_view(TEXT)
        with tool._directory._lock:
            async with anyio.create_task_group() as group:
                group.start_soon(tool.call, {"command": "delete", "path": NOTES})
                for _ in range(10):
                    await anyio.lowlevel.checkpoint()
                    turns.append(1)
                group.cancel_scope.cancel()
        assert await tool.call({"command": "view", "path": NOTES}) == format_view(TEXT)

    anyio.run(play)
    for thread in threading.enumerate():
        if thread.name.startswith("AnyIO"):
            thread.join()  # This includes the thread of the cancelled command.
    assert len(turns) == 10
