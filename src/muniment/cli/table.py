"""The commands: the words of each, its module, the first line of its help, and the groups of the help.

So `muniment --help` and a group tell what there is, and no command is loaded before it, or its help, is asked
for. Apart from `app`: where the program starts it reads this before it loads what parses a command line.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NamedTuple


class CommandRow(NamedTuple):
    """A command, or a group of commands.

    Attributes:
        help: the first line of its help.
        module: of `muniment.cli`, where its function stands; empty: it is a group.
        has_agent: it runs an agent, so that a worker is made ready first.
        is_traced: it carries out tasks, whose spans are exported.
        core: module of `muniment.cli` that a daemon needs for `--ledger`; loaded only then.
    """

    help: str
    module: str = ""
    has_agent: bool = False
    is_traced: bool = False
    core: str = ""

    def load_core(self) -> Any:
        """Return the function `core_of` of the module `core`, which makes what a node of a fleet serves."""
        return import_module(f"muniment.cli.{self.core}").core_of


PROGRAM: Final = "Long-term memory for AI agents as plain markdown."

TABLE: Final[dict[str, CommandRow]] = {
    "remember": CommandRow("Remember a fact.", "remember", has_agent=True, is_traced=True),
    "ls": CommandRow("List the entries, with whatever cannot be read or named.", "inspect"),
    "show": CommandRow("Print an entry.", "inspect"),
    "doctor": CommandRow(
        "Try what the kernel fence holds here, or, with --model, what a model's server can do.", "doctor"
    ),
    "tool": CommandRow("Answer tool calls given as JSON lines.", "remember", has_agent=True),
    "recall": CommandRow("Recall what helps with a message.", "recall"),
    "forget": CommandRow(
        "Forget an entry, or what these words describe; `undo` brings it back until it is erased.",
        "tidying",
        is_traced=True,
    ),
    "dream": CommandRow(
        "Tidy the memory: merge what says the same, remove what has expired, count the rest.",
        "tidying",
        is_traced=True,
    ),
    "history": CommandRow("List what was committed, the newest first.", "ledger"),
    "why": CommandRow("Say where an entry comes from, and whether it was edited by hand since.", "ledger"),
    "edit": CommandRow("Open an entry in your editor, and commit it as yours when you close it.", "inspect"),
    "pin": CommandRow(
        "Pin an entry, so that no run changes it and recall looks there first; or unpin a pinned one.",
        "inspect",
    ),
    "undo": CommandRow(
        "Take back what a task did; refused where its files were changed since.", "ledger", is_traced=True
    ),
    "erase": CommandRow(
        "Erase an entry with its whole history, for good; "
        "or, with --verify, look for what is left of a text.",
        "ledger",
    ),
    "serve": CommandRow(
        "Serve workspaces over HTTP until SIGTERM or Ctrl-C; the log goes to standard error.",
        "daemon",
        is_traced=True,
        core="fleet",
    ),
    "ui": CommandRow(
        "Show the memory on a page: search it, see where it comes from, review, edit, undo.", "daemon"
    ),
    "acp": CommandRow(
        "Answer a host that speaks the Agent Client Protocol, on standard input and output, until its end.",
        "daemon",
        has_agent=True,
        is_traced=True,
    ),
    "mcp": CommandRow(
        "Serve the memory to a tool that speaks the Model Context Protocol, on standard input and output.",
        "mcp",
        is_traced=True,
    ),
    "conformance": CommandRow(
        "Attack a memory tool with the shipped corpus, in throwaway directories, and tell what held.",
        "conformance",
    ),
    "init": CommandRow(
        "Keep the memory of this project inside its repository, where git takes it along.", "projects"
    ),
    "import": CommandRow(
        "Import the memory of another tool, or an export; what is there already is not written twice.",
        "moving",
    ),
    "export": CommandRow(
        "Write every entry, with where it comes from, to one file that `import` reads.", "moving"
    ),
    "backup": CommandRow(
        "Back up the whole home, as it is at one moment, while others go on: files, ledger, configuration.",
        "moving",
    ),
    "restore": CommandRow(
        "Make the home of a backup, once all of it is checked; a home that holds anything is left alone.",
        "moving",
    ),
    "index": CommandRow("Rebuild or verify the generated index of each scope."),
    "index rebuild": CommandRow("Write the index of every scope anew from its entries.", "inspect"),
    "index verify": CommandRow("Compare every index with its entries; exit 1 if one differs.", "inspect"),
    "review": CommandRow(
        "Decide about changes that wait for their owner: list, show, approve, reject.", is_traced=True
    ),
    "review list": CommandRow("List what waits.", "ledger"),
    "review show": CommandRow(
        "Show what waits: the whole text, with everything invisible made visible, and its digest.", "ledger"
    ),
    "review approve": CommandRow(
        "Commit what waits; on a terminal it is shown first, and you are asked.", "ledger"
    ),
    "review reject": CommandRow("Decide that what waits is never committed.", "ledger"),
    "audit": CommandRow("Check the chain of records for edits, removals and cuts."),
    "audit verify": CommandRow(
        "Check the whole chain; exit 1 if anything was edited, removed or cut.", "ledger"
    ),
    "audit head": CommandRow(
        "Print the end of the chain, to be kept where nobody can change it with the ledger.", "ledger"
    ),
    "audit show": CommandRow("Print the records.", "ledger"),
    "policy": CommandRow("Review, test, prove, pin and sign policies."),
    "policy lint": CommandRow("Say what is wrong with policies, or risky.", "policy"),
    "policy explain": CommandRow("Say what a policy answers to a request, and why.", "policy"),
    "policy diff": CommandRow("Prove that NEW grants no more than OLD.", "policy"),
    "policy test": CommandRow("Run inline tests, and try to fool them.", "policy"),
    "policy prove": CommandRow("Prove invariants, or refute them by a path.", "policy"),
    "policy show": CommandRow("Print a policy.", "policy_files"),
    "policy lock": CommandRow("Pin the policies of a folder to their digests.", "policy_files"),
    "policy sign": CommandRow("Sign a policy with ssh-keygen, into a file beside it.", "policy_files"),
    "policy verify": CommandRow("Say who has signed a policy.", "policy_files"),
    "token": CommandRow("The tokens with which clients call the daemon."),
    "token add": CommandRow("Make a token and print it; it is shown this once.", "daemon"),
    "token list": CommandRow("List whose tokens there are.", "daemon"),
    "token revoke": CommandRow("Make a token invalid, from the next request on.", "daemon"),
    "setup": CommandRow(
        "Put the MCP server and the recall hook into the settings of a coding tool.", "setup"
    ),
    "completion": CommandRow("Print what lets a shell complete commands and options.", "completion"),
    "uninstall": CommandRow("Take Muniment out of the coding tools; the memory stays.", "setup"),
    "projects": CommandRow("Which memory belongs to which repository."),
    "projects list": CommandRow(
        "List the projects: how many entries, where they lie, from where they were cloned.", "projects"
    ),
    "projects link": CommandRow(
        "Have this repository use the memory of a project, and copy the entries that it had into it.",
        "projects",
    ),
    "projects unlink": CommandRow(
        "Give this repository a memory of its own from now on; the one that it had stays where it is.",
        "projects",
    ),
    "projects rename": CommandRow(
        "Call a project by another name; its id and its directory stay.", "projects"
    ),
    "fleet": CommandRow("Many nodes over one PostgreSQL: see docs/fleet.md."),
    "fleet migrate": CommandRow(
        "Make the tables of a fleet, or bring them up to date; as the role that owns them.", "fleet"
    ),
    "fleet status": CommandRow(
        "Show the nodes, how many homes and leases there are, and what waits since when.", "fleet"
    ),
    "fleet home": CommandRow("The homes of a fleet, and their tokens."),
    "fleet home add": CommandRow(
        "Make a home, if there is none of that name, and a token for it, which is shown once.", "fleet"
    ),
    "fleet home list": CommandRow("List the homes.", "fleet"),
    "fleet home revoke": CommandRow("Make a token of a home invalid, from the next request on.", "fleet"),
    "fleet home remove": CommandRow(
        "Delete a home with everything that is remembered in it, its history and its tokens.", "fleet"
    ),
}
"""By their words."""

GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "Memory": ("remember", "recall", "ls", "show", "edit", "pin", "forget", "dream", "index"),
    "History": ("history", "why", "undo", "review", "erase", "audit"),
    "Tools": ("setup", "uninstall", "completion", "mcp", "acp", "tool", "projects", "init"),
    "Operate": ("serve", "ui", "token", "fleet", "import", "export", "backup", "restore", "doctor"),
    "Policy": ("policy", "conformance"),
}
"""The commands of the program as its help lists them."""
