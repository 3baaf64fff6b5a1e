"""The table of operations agrees with every surface."""

from __future__ import annotations

import inspect
from importlib import import_module
from keyword import iskeyword

import pytest

from kit.operations import table_page
from muniment import types
from muniment.api import Memory
from muniment.async_api import AsyncMemory
from muniment.cli.table import TABLE as COMMANDS
from muniment.client import AsyncClient, Client
from muniment.integrations.mcp.tools import TOOLS
from muniment.operations.table import NOT_OFFERED, OWN_ARGUMENTS, TABLE
from muniment.server import acp
from muniment.server.http import BASE
from muniment.server.page.actions import ACTIONS
from muniment.server.page.views import VIEWS
from muniment.server.service import OPERATIONS

METHODS = {name: row for name, row in TABLE.items() if not row.library}
NOT_OPERATIONS = {
    "library": {"close", "conversation", "subagent", "recaller", "try_remember", "try_forget", "try_dream"},
    "client": {"get", "wait", "cancel", "tasks", "handle", "events", "cursor", "close"}
    | {"capabilities", "audit_head", "open_ui"},
    "http": {"capabilities", "healthz", "health", "hello", "readyz", "ui", "metrics", "openapi.json"}
    | {"tasks", "events", "head"},
    "cli": {"doctor", "tool", "serve", "ui", "acp", "mcp", "conformance", "init", "backup", "restore"}
    | {"setup", "completion", "uninstall", "index verify", "redo"},
    "page": {"reviews", "tasks", "task", "audit", "health", "edit", "/cancel"},
}
"""Parts of a surface that are not operations on a memory: tasks, the daemon, the machine, policies.

`redo` is the undo of an undo.
"""


def read_parameters(method):
    """Return the arguments of a method and their defaults."""
    found = dict(inspect.signature(method).parameters)
    found.pop("self", None)
    return {name: each.default for name, each in found.items()}


def load_command(command_name):
    module = import_module(f"muniment.cli.{COMMANDS[command_name.partition(' --')[0]].module}")
    function = command_name.partition(" --")[0].replace(" ", "_")
    return getattr(module, f"{function}_" if iskeyword(function) else function)


def list_public(kind):
    return {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name, None))}


@pytest.mark.parametrize("name", METHODS)
def test_argument_names_and_defaults_are_the_same_everywhere(name):
    library, client = read_parameters(getattr(Memory, name)), read_parameters(getattr(Client, name))
    assert read_parameters(getattr(AsyncMemory, name)) == library
    assert read_parameters(getattr(AsyncClient, name)) == client
    shared = library.keys() & client.keys()
    assert {each: library[each] for each in shared} == {each: client[each] for each in shared}
    for surface, found in (("library", library), ("client", client)):
        own = {argument for operation, argument in OWN_ARGUMENTS[surface] if operation == name}
        assert found.keys() - shared == own, surface
    assert "yes" not in {*library, *client}


def test_own_arguments_are_of_operations():
    assert {name for own in OWN_ARGUMENTS.values() for name, _ in own} <= METHODS.keys()


@pytest.mark.parametrize("name", TABLE)
def test_previews_of_surfaces_match_table(name):
    row, found = TABLE[name], set()
    if not row.library:
        found |= {"library"} if "dry_run" in read_parameters(getattr(Memory, name)) else set()
        found |= {"HTTP"} if "dry_run" in read_parameters(getattr(Client, name)) else set()
    bodies = [each.body for each in OPERATIONS if f"{each.method} {each.path.removeprefix(BASE)}" == row.http]
    assert any(each and "dry_run" in each.model_fields for each in bodies) == ("HTTP" in found)
    if row.mcp in TOOLS and {"dry_run", "yes"} & TOOLS[row.mcp].model_fields.keys():
        found.add("MCP")
    if not row.cli.startswith(NOT_OFFERED):
        command = inspect.signature(load_command(row.cli)).parameters
        if (
            "dry_run" in command
            or name == "index"
            or (name in {"forget", "dream", "erase"} and "yes" in command)
        ):
            found.add("CLI")  # `index verify` is the preview of `index rebuild`.
    assert set(row.previews) == found


def test_library_and_clients_have_exactly_the_operations():
    assert list_public(Memory) == METHODS.keys() | (NOT_OPERATIONS["library"] - {"recaller"})
    assert list_public(AsyncMemory) == METHODS.keys() | {"open", "close"}
    for kind in Client, AsyncClient:
        own = {name for name in list_public(kind) if not name.endswith(("_memory", "_task"))}
        assert own == METHODS.keys() | NOT_OPERATIONS["client"]


def test_http_has_exactly_the_operations_and_their_callers():
    served = {f"{each.method} {each.path.removeprefix(BASE)}": each for each in OPERATIONS}
    for name, row in TABLE.items():
        if not row.http.startswith(NOT_OFFERED):
            assert served.pop(row.http).is_owner_only == (row.caller == "owner"), name
    rest = {each.rpartition("/")[2].partition(" ")[2] or each.rpartition("/")[2] for each in served}
    assert rest - {"{taskId}"} == NOT_OPERATIONS["http"]


def test_mcp_acp_cli_and_page_have_exactly_the_operations():
    def cells(column):
        return {each for row in TABLE.values() if not (each := getattr(row, column)).startswith(NOT_OFFERED)}

    assert cells("mcp") == set(TOOLS)
    assert {f"{acp.BASE}/{each}" for each in cells("acp")} == {*acp.METHODS, acp.CONTEXT}
    assert cells("page") | NOT_OPERATIONS["page"] == {*VIEWS, *ACTIONS}
    commands = {name for name, row in COMMANDS.items() if row.module}
    groups = ("audit", "policy", "token", "projects", "fleet")
    own = {name for name in commands if not name.startswith(groups)}
    assert own == {each.partition(" --")[0] for each in cells("cli")} | NOT_OPERATIONS["cli"]


def test_cells_name_results_that_exist_or_a_reason():
    for name, row in TABLE.items():
        if "." not in row.result:
            assert hasattr(types, row.result), name
        for cell in row[3:]:
            assert cell == row.library == "" or len(cell.removeprefix(NOT_OFFERED)) > 1, name


def test_library_page_has_the_table():
    assert table_page.PAGE.read_text(encoding="utf-8") == table_page.build_page(), (
        f"run: {table_page.COMMAND}"
    )
