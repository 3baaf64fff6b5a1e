"""List the commands: their words, modules and first lines of help, and the sections of the program's help.

`muniment --help` and the help of a group print this list without loading a command. The list is separate from
`app`, because `entry` reads it before it loads the parser of the command line.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NamedTuple


class CommandRow(NamedTuple):
    """A command, or a group of commands.

    Attributes:
        help: the first line of the help.
        module: the module in `muniment.cli` that contains the function of the command; empty: it is a group.
        has_agent: whether the command runs an agent, so that the zygote must be started first.
        is_traced: whether the command executes tasks, so that their trace spans are exported.
        core: a module in `muniment.cli` that the daemon loads only for `--ledger`; empty: none.
    """

    help: str
    module: str = ""
    has_agent: bool = False
    is_traced: bool = False
    core: str = ""

    def load_core(self) -> Any:
        """Load the module `core`, and return its function `create_core`, which creates a node of a fleet."""
        return import_module(f"muniment.cli.{self.core}").create_core


PROGRAM_NAME: Final = "muniment"

COMPLETE_VARIABLE: Final = "_MUNIMENT_COMPLETE"
"""The variable with which the script of a shell requests completions; its value names the shell."""

PROGRAM: Final = "Long-term memory for AI agents as plain markdown."

TABLE: Final[dict[str, CommandRow]] = {
    "remember": CommandRow("Remember a fact.", "remember", has_agent=True, is_traced=True),
    "ls": CommandRow("List the entries by scope and topic.", "inspect"),
    "show": CommandRow("Print an entry.", "inspect"),
    "doctor": CommandRow("Test the confinement of workers, or a model's server.", "doctor"),
    "tool": CommandRow(
        "Run tool calls that standard input contains as JSON lines.", "remember", has_agent=True
    ),
    "recall": CommandRow("Recall entries that help with a message.", "recall"),
    "forget": CommandRow("Forget entries, by their handle, path or description.", "tidying", is_traced=True),
    "dream": CommandRow(
        "Tidy the memory: merge duplicates, remove expired entries.",
        "tidying",
        is_traced=True,
    ),
    "history": CommandRow("List the committed changes, newest first.", "history"),
    "why": CommandRow("Show the origin of an entry: who wrote it, and when.", "history"),
    "edit": CommandRow("Edit an entry in your editor.", "inspect"),
    "pin": CommandRow(
        "Protect an entry from agents, or end that protection.",
        "inspect",
    ),
    "undo": CommandRow("Undo a change; without an argument, the last one.", "history", is_traced=True),
    "redo": CommandRow("Redo a change that was undone.", "history", is_traced=True),
    "erase": CommandRow(
        "Erase an entry and its history permanently.",
        "ledger",
    ),
    "serve": CommandRow(
        "Serve workspaces over HTTP until SIGTERM or Ctrl-C.",
        "daemon",
        is_traced=True,
        core="fleet",
    ),
    "ui": CommandRow("Show the memory in the browser: search, review, edit, undo.", "daemon"),
    "acp": CommandRow(
        "Serve an Agent Client Protocol host on standard input.",
        "daemon",
        has_agent=True,
        is_traced=True,
    ),
    "mcp": CommandRow(
        "Serve a Model Context Protocol host on standard input.",
        "mcp",
        is_traced=True,
    ),
    "conformance": CommandRow(
        "Attack a memory tool with the packaged corpus.",
        "conformance",
    ),
    "init": CommandRow("Store the memory of this project inside its repository.", "projects"),
    "import": CommandRow(
        "Import the memory of another tool, or an export.",
        "moving",
    ),
    "export": CommandRow("Write every entry with its provenance to one file.", "moving"),
    "backup": CommandRow(
        "Back up the complete home: files, ledger, configuration.",
        "moving",
    ),
    "restore": CommandRow(
        "Restore a home from a backup, after a complete check.",
        "moving",
    ),
    "index": CommandRow("Rebuild or verify the generated index of each scope."),
    "index rebuild": CommandRow("Rebuild the index of every scope from its entries.", "inspect"),
    "index verify": CommandRow("Compare every index with its entries.", "inspect"),
    "review": CommandRow("Decide about pending reviews: list, show, approve, reject.", is_traced=True),
    "review list": CommandRow("List the pending reviews.", "ledger"),
    "review show": CommandRow("Show a pending review and its digest.", "ledger"),
    "review approve": CommandRow("Commit a pending review.", "ledger"),
    "review reject": CommandRow("Reject a pending review.", "ledger"),
    "audit": CommandRow("Check the chain of audit records for changes."),
    "audit verify": CommandRow("Check the complete chain of audit records.", "ledger"),
    "audit head": CommandRow("Print the head of the chain of audit records.", "ledger"),
    "audit show": CommandRow("Print the audit records.", "ledger"),
    "policy": CommandRow("Review, test, prove, pin and sign policies."),
    "policy lint": CommandRow("Report errors and risks in policies.", "policy"),
    "policy explain": CommandRow("Show how a policy decides a request, and why.", "policy"),
    "policy diff": CommandRow("Prove that NEW allows no more than OLD.", "policy"),
    "policy test": CommandRow("Run the inline tests of policies.", "policy"),
    "policy prove": CommandRow("Prove invariants, or refute them with a path.", "policy"),
    "policy show": CommandRow("Print a policy.", "policy_files"),
    "policy lock": CommandRow("Pin the policies of a folder to their digests.", "policy_files"),
    "policy sign": CommandRow("Sign a policy with ssh-keygen, into a file next to it.", "policy_files"),
    "policy verify": CommandRow("Verify the signature of a policy, and show its signer.", "policy_files"),
    "token": CommandRow("Manage the tokens with which clients call the daemon."),
    "token add": CommandRow("Create a token and print it once.", "daemon"),
    "token list": CommandRow("List the tokens with their client ids and their trust.", "daemon"),
    "token revoke": CommandRow("Revoke a token.", "daemon"),
    "setup": CommandRow("Add the MCP server and the recall hook to a coding tool.", "setup"),
    "completion": CommandRow("Print the completion script for a shell.", "completion"),
    "uninstall": CommandRow("Remove Muniment from the coding tools; the memory stays.", "uninstall"),
    "projects": CommandRow("Manage which memory belongs to which repository."),
    "projects list": CommandRow("List the projects: number of entries, paths, and clone URL.", "projects"),
    "projects link": CommandRow(
        "Use the memory of another project in this repository.",
        "projects",
    ),
    "projects unlink": CommandRow(
        "Give this repository a separate memory.",
        "projects",
    ),
    "projects rename": CommandRow("Rename a project; its id and its directory stay.", "projects"),
    "fleet": CommandRow("Operate many nodes over one PostgreSQL: see docs/fleet.md."),
    "fleet migrate": CommandRow("Create or update the tables of a fleet.", "fleet"),
    "fleet status": CommandRow("Show the nodes, homes, leases and waiting tasks.", "fleet"),
    "fleet home": CommandRow("Manage the homes of a fleet, and their tokens."),
    "fleet home add": CommandRow("Create a home if it does not exist, and a token for it.", "fleet"),
    "fleet home list": CommandRow("List the homes.", "fleet"),
    "fleet home revoke": CommandRow("Revoke a token of a home.", "fleet"),
    "fleet home remove": CommandRow("Delete a home with its entries, history and tokens.", "fleet"),
}
"""All commands and groups, by their words."""

GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "Memory": ("remember", "recall", "ls", "show", "edit", "pin", "forget", "dream", "index"),
    "History": ("history", "why", "undo", "redo", "review", "erase", "audit"),
    "Tools": ("setup", "uninstall", "completion", "mcp", "acp", "tool", "projects", "init"),
    "Operate": ("serve", "ui", "token", "fleet", "import", "export", "backup", "restore", "doctor"),
    "Policy": ("policy", "conformance"),
}
"""The commands in the help of the program, by section."""

ALIASES: Final[dict[str, str]] = {"log": "history", "list": "ls"}
"""Other names of commands, for people who know them from other programs."""
