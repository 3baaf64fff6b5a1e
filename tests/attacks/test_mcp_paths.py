"""Pass the paths of the escape corpus to MCP tools and resources, and to show, edit and pin."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from urllib.parse import quote

import pytest
from mcp.shared.exceptions import MCPError

from kit.mcp import read_text, run_with_client
from muniment.cli.command import open_model_and_drop_key
from muniment.errors import MunimentError
from muniment.integrations.mcp.memory import LazyMemory, LocalBackend
from muniment.integrations.mcp.server import MemoryServer
from muniment.kernel.names import Trust
from muniment.operations.edit import edit_entry, toggle_pin
from muniment.operations.listing import show_entry
from muniment.settings import Settings
from muniment.testing.corpus import (
    CallResult,
    CommitOutcome,
    FailureKind,
    UnsupportedCall,
    load_corpus,
    run_case,
)
from muniment.testing.corpus.stage import ROOTS
from muniment.testing.corpus.subjects import choose_symlinks, write_policy

CORPUS = load_corpus()
UNSAFE = {
    FailureKind.LEFT,
    FailureKind.CROSSED,
    FailureKind.READ,
    FailureKind.CANARY,
    FailureKind.PATH,
    FailureKind.DIED,
    FailureKind.HUNG,
}
READS = {
    case_id: case
    for case_id, case in CORPUS.cases.items()
    if case["call"]["tool"] == "read_file" and not any(each["op"] == "swap" for each in case["setup"])
}


DIRECT = {
    "operation": show_entry,
    "edit": lambda context, path: edit_entry(context, path, "a text of the owner"),
    "pin": toggle_pin,
}
"""Operations that the library and HTTP call with paths of their callers."""


class Server:
    """A server over the roots of a stage; a read is `show_entry` or a resource."""

    commits_often = False

    def __init__(self, stage, case, method):
        roots = {scope: stage.get_scope_path(scope) for scope in ROOTS}
        policy = write_policy(stage, case, require="none")
        settings = Settings(stage.state, policy=str(policy), roots=roots, symlinks=choose_symlinks(case))
        self._method = method
        self._opened = LazyMemory(
            lambda: settings, stage.tree, open_model_and_drop_key, print, in_process=True
        )
        self._opened.get_context()

    def call(self, tool, arguments):
        if tool != "read_file" or not isinstance(arguments, dict):
            raise UnsupportedCall(f"no {tool}")
        if self._method in DIRECT:
            return self._call_directly(arguments)
        with closing(LocalBackend(self._opened, Trust.AGENT)) as memory:
            return run_with_client(
                lambda: MemoryServer(lambda _: memory), "legacy", partial(self._read, arguments)
            )

    def _call_directly(self, arguments):
        context, path = self._opened.get_context(), arguments.get("path")
        try:
            return CallResult("allow", None, str(DIRECT[self._method](context, str(path))), "")
        except MunimentError as error:
            return CallResult("error", None, str(error), "")

    async def _read(self, arguments, client):
        if self._method == "show":
            result = await client.call_tool("show", arguments)
            return CallResult("error" if result.is_error else "allow", None, read_text(result), "")
        try:
            uri = f"muniment://{quote(str(arguments.get('path')), errors='replace')}"
            found = await client.read_resource(uri)
        except MCPError as error:
            return CallResult("error", None, str(error), "")
        return CallResult("allow", None, found.contents[0].text, "")

    def commit(self):
        return CommitOutcome(None, "")

    def close(self):
        self._opened.close()
        return ""


@pytest.mark.parametrize("method", ["show", "resource", *DIRECT])
@pytest.mark.parametrize("step", [16, pytest.param(1, marks=pytest.mark.slow)])
def test_corpus_paths_stay_inside_the_memory(tmp_path, method, step):
    cases = dict(list(READS.items())[::step]) | {"ok-read-relative": READS["ok-read-relative"]}
    assert len(cases) * step >= 60
    unsafe, allowed = {}, 0
    for case_id, case in cases.items():
        try:
            found = run_case(
                case, tmp_path / case_id, CORPUS.canary, lambda stage, of: Server(stage, of, method)
            )
        except (MunimentError, UnsupportedCall):
            continue  # Its roots cannot be bound, or it writes first.
        allowed += case["expect"] == "allow" and FailureKind.REFUSED not in {each.kind for each in found}
        if bad := [each for each in found if each.kind in UNSAFE]:
            unsafe[case_id] = bad, case["why"]
    assert unsafe == {}
    assert allowed, "readable files must be read"
