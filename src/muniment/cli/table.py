"""List the commands: their words, modules and first lines of help, and the sections of the help.

`muniment --help` and a group print this list without loading a command. The list is separate from `app`,
because `entry` reads it before it loads the parser of the command line.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NamedTuple


class CommandRow(NamedTuple):
    """A command, or a group of commands.

    Attributes:
        help: the first line of its help.
        module: the module of `muniment.cli` with its function; empty: a group.
        has_agent: it runs an agent, so the zygote is started first.
        is_traced: it executes tasks, whose spans are exported.
        core: the module of `muniment.cli` that a daemon loads for `--ledger` only.
    """

    help: str
    module: str = ""
    has_agent: bool = False
    is_traced: bool = False
    core: str = ""

    def load_core(self) -> Any:
        """Return the function `create_core` of the module `core`, which creates the core of a fleet's
        node.
        """
        return import_module(f"muniment.cli.{self.core}").core_of


PROGRAM: Final = "Long-term memory for AI agents as plain markdown."

TABLE: Final[dict[str, CommandRow]] = {
    "remember": CommandRow("Remember a fact.", "remember", has_agent=True, is_traced=True),
    "ls": CommandRow("List the entries, and the files that were skipped, with the reason.", "inspect"),
    "show": CommandRow("Print an entry.", "inspect"),
    "doctor": CommandRow(
        "Test the confinement of workers on this system, or, with --model, a model's server.", "doctor"
    ),
    "tool": CommandRow("Run tool calls given as JSON lines.", "remember", has_agent=True),
    "recall": CommandRow("Recall entries that help with a message.", "recall"),
    "forget": CommandRow(
        "Forget an entry, by its path or a description; `undo` restores it until it is erased.",
        "tidying",
        is_traced=True,
    ),
    "dream": CommandRow(
        "Tidy the memory: merge duplicates, remove expired entries, count other problems.",
        "tidying",
        is_traced=True,
    ),
    "history": CommandRow("List the committed changes, newest first.", "ledger"),
    "why": CommandRow("Show where an entry comes from, and whether it was edited by hand since.", "ledger"),
    "edit": CommandRow(
        "Open an entry in your editor; commit the text as yours after you close it.", "inspect"
    ),
    "pin": CommandRow(
        "Pin an entry, so that no run changes it and recall prefers it; unpin a pinned entry.",
        "inspect",
    ),
    "undo": CommandRow("Undo a task; rejected if its files were changed since.", "ledger", is_traced=True),
    "erase": CommandRow(
        "Erase an entry and its history permanently; or, with --verify, search for remains of a text.",
        "ledger",
    ),
    "serve": CommandRow(
        "Serve workspaces over HTTP until SIGTERM or Ctrl-C; write the log to standard error.",
        "daemon",
        is_traced=True,
        core="fleet",
    ),
    "ui": CommandRow("Show the memory on a page: search, provenance, review, edit, undo.", "daemon"),
    "acp": CommandRow(
        "Serve an Agent Client Protocol host, on standard input and output, until the input ends.",
        "daemon",
        has_agent=True,
        is_traced=True,
    ),
    "mcp": CommandRow(
        "Serve the memory to a Model Context Protocol host, on standard input and output.",
        "mcp",
        is_traced=True,
    ),
    "conformance": CommandRow(
        "Attack a memory tool with the packaged corpus, in temporary directories, and report the results.",
        "conformance",
    ),
    "init": CommandRow(
        "Store the memory of this project inside its repository, so that git versions it.", "projects"
    ),
    "import": CommandRow(
        "Import the memory of another tool, or an export; existing entries are not written twice.",
        "moving",
    ),
    "export": CommandRow(
        "Write every entry, with its provenance, to one file that `import` reads.", "moving"
    ),
    "backup": CommandRow(
        "Back up the complete home at one moment, while others write: files, ledger, configuration.",
        "moving",
    ),
    "restore": CommandRow(
        "Restore a home from a backup, after a complete check; a home that is not empty stays unchanged.",
        "moving",
    ),
    "index": CommandRow("Rebuild or verify the generated index of each scope."),
    "index rebuild": CommandRow("Rebuild the index of every scope from its entries.", "inspect"),
    "index verify": CommandRow("Compare every index with its entries; exit 1 if one differs.", "inspect"),
    "review": CommandRow("Decide about pending reviews: list, show, approve, reject.", is_traced=True),
    "review list": CommandRow("List the pending reviews.", "ledger"),
    "review show": CommandRow(
        "Show a pending review: its text with invisible characters made visible, and its digest.", "ledger"
    ),
    "review approve": CommandRow(
        "Commit a pending review; on a terminal, show it first and ask for confirmation.", "ledger"
    ),
    "review reject": CommandRow("Reject a pending review; its changes are never committed.", "ledger"),
    "audit": CommandRow("Check the chain of audit records for edits, removals and truncation."),
    "audit verify": CommandRow(
        "Check the complete chain; exit 1 if a record was edited, removed or cut off.", "ledger"
    ),
    "audit head": CommandRow("Print the end of the chain; store it apart from the ledger.", "ledger"),
    "audit show": CommandRow("Print the audit records.", "ledger"),
    "policy": CommandRow("Review, test, prove, pin and sign policies."),
    "policy lint": CommandRow("Report errors and risks in policies.", "policy"),
    "policy explain": CommandRow("Show how a policy decides a request, and why.", "policy"),
    "policy diff": CommandRow("Prove that NEW allows no more than OLD.", "policy"),
    "policy test": CommandRow(
        "Run the inline tests of policies, and check that they detect weakened rules.", "policy"
    ),
    "policy prove": CommandRow("Prove invariants, or refute them with a path.", "policy"),
    "policy show": CommandRow("Print a policy.", "policy_files"),
    "policy lock": CommandRow("Pin the policies of a folder to their digests.", "policy_files"),
    "policy sign": CommandRow("Sign a policy with ssh-keygen, into a file next to it.", "policy_files"),
    "policy verify": CommandRow("Verify the signature of a policy, and show its signer.", "policy_files"),
    "token": CommandRow("Manage the tokens with which clients call the daemon."),
    "token add": CommandRow("Create a token and print it; it is printed only once.", "daemon"),
    "token list": CommandRow("List the tokens with their client ids and their trust.", "daemon"),
    "token revoke": CommandRow("Revoke a token; it is invalid from the next request on.", "daemon"),
    "setup": CommandRow("Add the MCP server and the recall hook to the settings of a coding tool.", "setup"),
    "completion": CommandRow(
        "Print the script with which a shell completes commands and options.", "completion"
    ),
    "uninstall": CommandRow("Remove Muniment from the coding tools; the memory stays.", "setup"),
    "projects": CommandRow("Manage which memory belongs to which repository."),
    "projects list": CommandRow("List the projects: number of entries, paths, and clone URL.", "projects"),
    "projects link": CommandRow(
        "Use the memory of another project in this repository, and copy the current entries into it.",
        "projects",
    ),
    "projects unlink": CommandRow(
        "Give this repository a separate memory; the previous one stays where it is.",
        "projects",
    ),
    "projects rename": CommandRow("Rename a project; its id and its directory stay.", "projects"),
    "fleet": CommandRow("Operate many nodes over one PostgreSQL: see docs/fleet.md."),
    "fleet migrate": CommandRow(
        "Create or update the tables of a fleet; run it as the role that owns them.", "fleet"
    ),
    "fleet status": CommandRow(
        "Show the nodes, the number of homes and leases, and the waiting tasks.", "fleet"
    ),
    "fleet home": CommandRow("Manage the homes of a fleet, and their tokens."),
    "fleet home add": CommandRow(
        "Create a home if it does not exist, and a token for it, which is printed only once.", "fleet"
    ),
    "fleet home list": CommandRow("List the homes.", "fleet"),
    "fleet home revoke": CommandRow(
        "Revoke a token of a home; it is invalid from the next request on.", "fleet"
    ),
    "fleet home remove": CommandRow(
        "Delete a home with all its entries, its history and its tokens.", "fleet"
    ),
}
"""The commands by their words."""

GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "Memory": ("remember", "recall", "ls", "show", "edit", "pin", "forget", "dream", "index"),
    "History": ("history", "why", "undo", "review", "erase", "audit"),
    "Tools": ("setup", "uninstall", "completion", "mcp", "acp", "tool", "projects", "init"),
    "Operate": ("serve", "ui", "token", "fleet", "import", "export", "backup", "restore", "doctor"),
    "Policy": ("policy", "conformance"),
}
"""The commands of the program by section of its help."""
