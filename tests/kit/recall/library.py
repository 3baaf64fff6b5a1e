"""A memory of given entries, and the questions that tests ask of it: by catalog, search, shelf and ledger."""

from __future__ import annotations

import json
import tomllib
from contextlib import closing, contextmanager
from pathlib import Path

from kit.memories import put
from kit.store.ground import origin, patience, sha
from muniment import api
from muniment.confine.cancel import Patience
from muniment.names import Digest, RelPath, Trust
from muniment.policy.decide import Judge
from muniment.recall.recaller import Shelf, read
from muniment.recall.search import EntryKey, Hit, Search, Stemmer, Wanted, read_query
from muniment.store.commit import Terms, commit
from muniment.store.ledger import root_key
from muniment.store.trust import constant
from muniment.store.upkeep import view_of
from muniment.tools.overlay import ChangeSet, Proposed

QUALITY = Path(__file__).parent / "quality"
AT = "2026-11-22T10:00:00.000Z"
NOW = "2026-11-22T12:00:00.000Z"
FOREVER = Patience(float("inf"))
LIMIT = 5


def everything(_root, _rel):
    return True


def entry_of(name, body, description=None, keywords=()):
    """The text of an entry."""
    front = [f"name: {json.dumps(name, ensure_ascii=False)}"]
    front += [f"description: {json.dumps(description, ensure_ascii=False)}"] if description else []
    front += [f"keywords: {json.dumps(list(keywords), ensure_ascii=False)}"] if keywords else []
    return "\n".join(["---", *front, "---", "", body.strip(), ""])


def quality_entries():
    """The entries of the quality set: {logical path: text}."""
    tables = tomllib.loads((QUALITY / "entries.toml").read_text(encoding="utf-8"))["entry"]
    return {table.pop("path"): entry_of(**table) for table in tables}


def quality_queries():
    """Its queries: tables of `text`, `kind`, and `right`, the entries that answer it."""
    return tomllib.loads((QUALITY / "queries.toml").read_text(encoding="utf-8"))["query"]


class Library:
    """An open memory; `search` may be replaced."""

    def __init__(self, memory):
        self.place, self.state = memory.place, memory.place.state
        self.catalog = self.state.catalog
        self.stemmer = Stemmer()
        self.search = Search(self.catalog, self.stemmer)
        self.keys = {scope: root_key(self.state, bound) for scope, bound in self.place.roots.items()}
        self.scopes = {key: scope for scope, key in self.keys.items()}

    # -- what is in it

    def file(self, path):
        """Where the file of a logical path is."""
        scope, _, rel = path.partition("/")
        return self.place.roots[scope].trusted_path / rel

    def put(self, entries, text=None):
        """Files of unknown origin: {logical path: text}, or one path and its text."""
        for path, content in (entries if text is None else {entries: text}).items():
            scope, _, rel = path.partition("/")
            put(self.place.roots[scope].trusted_path, rel, content)

    def commit(self, path, text, *, trust=Trust.OWNER, at=AT, policy=None, reviewed=True):
        """A file that the ledger knows."""
        before = self.file(path)
        known = sha(before.read_bytes()) if before.exists() else None
        commit(
            [ChangeSet((Proposed(path, known, text.encode()),), (), ())],
            Terms(
                policy or self.place.policy,
                self.place.roots,
                patience(),
                self.state,
                origin(trust=trust, at=at),
                constant(trust),
                reviewed=reviewed,
            ),
        )

    def refresh(self, *, sweep=False):
        """Bring the rows up to date; the views by scope."""
        return {
            scope: view_of(self.state, bound, self.place.policy, sweep=sweep)
            for scope, bound in self.place.roots.items()
        }

    def update(self, path, **values):
        """Change what the row of an entry says, and nothing else."""
        scope, _, rel = path.partition("/")
        columns = ", ".join(f"{column} = ?" for column in values)
        with self.catalog.transaction() as connection:
            connection.execute(
                f"UPDATE entry SET {columns} WHERE root = ? AND rel = ?",
                (*values.values(), self.keys[scope], rel),
            )

    # -- what is asked of it

    def hits(self, message, *, scopes=None, patience=FOREVER, as_it_is=False, **wanted):
        """What the search finds for a message, by rows that are up to date, or as they are."""
        if not as_it_is:
            self.refresh()
        query = read_query(message, self.stemmer)
        roots = [key for scope, key in self.keys.items() if scopes is None or scope in scopes]
        terms = {"exclude": (), "now": NOW, "limit": LIMIT, "accepts": everything, **wanted}
        return self.search.find(Wanted(query, roots, **terms), patience).hits

    def path(self, hit):
        return f"{self.scopes[hit.key.root]}/{hit.key.rel}"

    def ask(self, message, **wanted):
        """The logical paths of what is found, best first."""
        return [self.path(hit) for hit in self.hits(message, **wanted)]

    def hit(self, path):
        """The hit that a search would have for a file as it is now."""
        scope, _, rel = path.partition("/")
        file = self.file(path)
        key = EntryKey(self.keys[scope], RelPath(rel), Digest(sha(file.read_bytes())))
        return Hit(key, file.stat().st_mtime_ns, 1.0)

    def read(self, hit, policy=None):
        """What comes of reading the file of a hit."""
        bound = self.place.roots[self.scopes[hit.key.root]]
        return read(hit, self.state, bound, policy or self.place.policy)

    def shelf(self, *, policy=None, scopes=None, patience=FOREVER):
        policy = policy or self.place.policy
        return Shelf(policy, self.place.roots, self.state, Judge(policy), scopes, patience)


@contextmanager
def library(base, entries=()):
    """A new memory below `base` that holds entries, {logical path: text}."""
    (base / "workspace" / ".git").mkdir(parents=True)
    with api.open(base / "workspace", home=base / "home") as memory:
        shelves = Library(memory)
        with closing(shelves.stemmer):
            shelves.put(dict(entries))
            yield shelves
