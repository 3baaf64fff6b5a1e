"""A memory, with direct queries of its catalog and search."""

from contextlib import closing, contextmanager
from pathlib import Path

from kit.recall.places import Ground, entry_of, ground
from muniment.kernel.cancel import Patience
from muniment.recall.query import read_query
from muniment.recall.search import Search, Wanted
from muniment.recall.stems import Stemmer
from muniment.store.ledger import root_key
from muniment.store.upkeep import view_of

__all__ = ["FOREVER", "NOW", "QUALITY", "entry_of", "library"]
QUALITY = Path(__file__).parent / "quality"
NOW = "2026-11-22T12:00:00.000Z"
FOREVER = Patience(float("inf"))


class Library(Ground):
    """An open memory; `search` may be replaced."""

    def __init__(self, place):
        super().__init__(place)
        self.catalog, self.stemmer = self.state.catalog, Stemmer()
        self.search = Search(self.catalog, self.stemmer)
        self.keys = {scope: root_key(self.state, bound) for scope, bound in place.roots.items()}
        self.scopes = {key: scope for scope, key in self.keys.items()}

    def refresh(self, *, sweep=False):
        """Bring the rows up to date."""
        for bound in self.place.roots.values():
            view_of(self.state, bound, self.place.policy, sweep=sweep)

    def update(self, path, **values):
        """Change columns in the row of an entry, and nothing else."""
        scope, _, rel = path.partition("/")
        columns = ", ".join(f"{column} = ?" for column in values)
        where = f"UPDATE entry SET {columns} WHERE root = ? AND rel = ?"
        self.execute(where, (*values.values(), self.keys[scope], rel))

    def hits(self, message, *, patience=FOREVER, as_it_is=False, scopes=None, **more):
        """Return the search hits for a message, after a refresh unless `as_it_is`."""
        if not as_it_is:
            self.refresh()
        terms = {"exclude": (), "now": NOW, "limit": 5, "accepts": lambda _root, _rel: True, **more}
        roots = [key for scope, key in self.keys.items() if scopes is None or scope in scopes]
        return self.search.find(Wanted(read_query(message, self.stemmer), roots, **terms), patience).hits

    def path(self, hit):
        return f"{self.scopes[hit.key.root]}/{hit.key.rel}"

    def ask(self, message, **wanted):
        """Return the logical paths of the hits, best first."""
        return [self.path(hit) for hit in self.hits(message, **wanted)]


@contextmanager
def library(base, entries=()):
    """Open a new memory under `base` with entries, {logical path: text}."""
    with ground(base, entries=entries, kind=Library) as shelves, closing(shelves.stemmer):
        yield shelves
