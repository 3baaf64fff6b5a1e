"""A memory, with direct queries of its catalog and search."""

from contextlib import closing, contextmanager
from pathlib import Path

from kit.recall.contexts import RecallBench, format_entry, open_bench
from muniment.kernel.cancel import Deadline
from muniment.recall.query import read_query
from muniment.recall.search import Search, SearchRequest
from muniment.recall.stems import Stemmer
from muniment.store.ledger import get_root_key
from muniment.store.upkeep import open_view

__all__ = ["FOREVER", "NOW", "QUALITY", "format_entry", "open_library"]
QUALITY = Path(__file__).parent / "quality"
NOW = "2026-11-22T12:00:00.000Z"
FOREVER = Deadline(float("inf"))


class Library(RecallBench):
    """An open memory; `search` may be replaced."""

    def __init__(self, context):
        super().__init__(context)
        self.catalog, self.stemmer = self.state.catalog, Stemmer()
        self.search = Search(self.catalog, self.stemmer)
        self.keys = {scope: get_root_key(self.state, bound) for scope, bound in context.roots.items()}
        self.scopes = {key: scope for scope, key in self.keys.items()}

    def refresh(self, *, sweep=False):
        """Bring the rows up to date."""
        for bound in self.context.roots.values():
            open_view(self.state, bound, self.context.policy, sweep=sweep)

    def update(self, path, **values):
        """Change columns in the row of an entry, and nothing else."""
        scope, _, rel = path.partition("/")
        columns = ", ".join(f"{column} = ?" for column in values)
        where = f"UPDATE entry SET {columns} WHERE root = ? AND rel = ?"
        self.execute(where, (*values.values(), self.keys[scope], rel))

    def search_hits(self, message, *, deadline=FOREVER, skip_refresh=False, scopes=None, **more):
        """Return the search hits for a message, after a refresh unless `skip_refresh`."""
        if not skip_refresh:
            self.refresh()
        options = {"exclude": (), "now": NOW, "limit": 5, "accepts": lambda _root, _rel: True, **more}
        roots = [key for scope, key in self.keys.items() if scopes is None or scope in scopes]
        return self.search.find(
            SearchRequest(read_query(message, self.stemmer), roots, **options), deadline
        ).hits

    def get_path(self, hit):
        return f"{self.scopes[hit.key.root]}/{hit.key.rel}"

    def search_paths(self, message, **wanted):
        """Return the logical paths of the hits, best first."""
        return [self.get_path(hit) for hit in self.search_hits(message, **wanted)]


@contextmanager
def open_library(base, entries=()):
    """Open a new memory under `base` with entries, {logical path: text}."""
    with open_bench(base, entries=entries, kind=Library) as library, closing(library.stemmer):
        yield library
