"""Ledgers written by older revisions, prepared for tests, and their content.

`facts/ledgers/record.py` created the data. `Recorded` reads the dump with `sqlite3` and shares no code with
Muniment: every migration must preserve this content.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from kit.where import FACTS
from muniment.workspaces.projects import workspace_key

DUMPS = FACTS / "ledgers"
OTHER = os.fsdecode(b"other-\xff")
WORKSPACES = ("work", "work2")


@dataclass(frozen=True)
class OldMemory:
    """A memory under `base` as an older revision left it.

    Attributes:
        home: its home; its workspaces `work` and `work2` are next to it.
        roots: by the names that `Recorded` uses.
        recorded: other recorded data: tokens, and ids of tasks and reviews.
    """

    base: Path
    home: Path
    roots: dict
    told: dict

    @property
    def other(self):
        """Return the roots of another memory with the same ledger, for binding by scope."""
        return {scope: self.roots[f"other {scope}"] for scope in ("user", "project")}

    def files(self, name):
        """Return the bytes of every file of a root except its indexes, by path."""
        found = (path for path in self.roots[name].rglob("*") if path.is_file())
        return {
            str(path.relative_to(self.roots[name])): path.read_bytes()
            for path in found
            if path.name != "MEMORY.md" and path.parent.name != "index"
        }


def lay_old_memory(base, revision="f7eaeae"):
    """Create the files of an older revision under a directory."""
    base = base.resolve()
    home, told = base / "home", json.loads((DUMPS / f"{revision}.json").read_text(encoding="utf-8"))
    for workspace in WORKSPACES:
        (base / workspace / ".git").mkdir(parents=True)
    roots = {"user": home / "user"}
    for workspace in WORKSPACES:
        roots[f"project of {workspace}"] = home / "projects" / workspace_key(base / workspace) / "memory"
    roots |= {f"other {scope}": base / OTHER / scope for scope in ("user", "project")}
    for name, root in roots.items():
        _make(root)
        for rel, text in told["files"][name].items():
            _make((root / rel).parent)
            _put(root / rel, text.encode())
    state = home / "state"
    _make(state)
    _put(state / "audit.key", bytes.fromhex(told["key"]))
    _put(state / "token", f"{told['token']}\n".encode())
    _put(state / "ledger.db", b"")
    with closing(sqlite3.connect(state / "ledger.db")) as ledger:
        ledger.executescript((DUMPS / f"{revision}.sql").read_text(encoding="utf-8"))
        for name, root in roots.items():
            ledger.execute("UPDATE root SET path = ? WHERE path = ?", (os.fsencode(root), name.encode()))
        for table in ("task", "event"):
            for workspace in WORKSPACES:
                names = (workspace_key(base / workspace), workspace)
                ledger.execute(f"UPDATE {table} SET workspace = ? WHERE workspace = ?", names)
        ledger.commit()
    return OldMemory(base, home, roots, told)


def _make(directory):
    """Create a private directory, and its missing parents."""
    for each in reversed([directory, *directory.parents]):
        each.mkdir(mode=0o700, exist_ok=True)


def _put(path, content):
    path.write_bytes(content)
    path.chmod(0o600)


class Recorded:
    """The content of a ledger dump. Roots are called `user`, `project of work`, `other user` and so on."""

    def __init__(self, revision="f7eaeae"):
        self._ledger = sqlite3.connect(":memory:")
        self._ledger.row_factory = sqlite3.Row
        self._ledger.executescript((DUMPS / f"{revision}.sql").read_text(encoding="utf-8"))
        self._roots = {row["id"]: row["path"].decode() for row in self.rows("root")}

    def close(self):
        self._ledger.close()

    @property
    def version(self):
        """Return the schema version."""
        return self._ledger.execute("PRAGMA user_version").fetchone()[0]

    def rows(self, table):
        """Return the rows of a table in the order of insertion."""
        order = {"forgotten": "fact", "provenance": "rel"}.get(table, "rowid")
        return [dict(row) for row in self._ledger.execute(f"SELECT * FROM {table} ORDER BY {order}")]

    def changes(self, *roots, done=True):
        """Yield the changes of completed commits to files of some roots, with their commits, oldest first."""
        commits = {row["id"]: row for row in self.rows("change_set") if bool(row["done"]) is done}
        for row in sorted(self.rows("change"), key=lambda row: (row["change_set"], row["position"])):
            if row["change_set"] in commits and self._roots[row["root"]] in roots:
                yield commits[row["change_set"]], {**row, "path": f"{row['scope']}/{row['rel']}"}

    def events(self, workspace, *roots):
        """Yield the events of a workspace, and those of all workspaces that concern one of some roots, in
        order.
        """
        for row in self.rows("event"):
            named = {self._roots[key] for key in json.loads(row["roots"])}
            if row["workspace"] == workspace or (row["workspace"] is None and named & {*roots}):
                scopes = {"project" if "project" in each else "user" for each in named}
                yield {**row, "data": json.loads(row["data"]), "scopes": sorted(scopes)}

    def reviews(self):
        """Return the undecided reviews by id: the row with its parsed proposal."""
        approved = {row["task"] for row in self.rows("change_set") if row["done"]}
        found = {}
        for row in self.rows("review"):
            if row["state"] != "pending" or f"approve:{row['id']}" in approved:
                continue
            proposal = json.loads(row["proposal"])
            texts = map(base64.b64decode, proposal["texts"])
            found[row["id"]] = {
                **row,
                "reasons": json.loads(row["reasons"]),
                "texts": {path: text for (path, *_), text in zip(proposal["changes"], texts, strict=True)},
                "removals": [path for path, _ in proposal["removals"]],
                "claims": [path for path, _ in proposal["claims"]],
                "trusts": proposal["trusts"],
                "roots": {scope: self._roots[key] for scope, key in proposal["roots"].items()},
            }
        return found
