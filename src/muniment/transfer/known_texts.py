"""What a memory says already, and which names are taken, while an import is under way.

Apart from `importing.py`, which decides: this module reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from muniment.content.entry import parse
from muniment.content.expiry import expiry_time
from muniment.content.words import comparable
from muniment.errors import PathEscape, ToolError
from muniment.kernel.names import Scope, Trust, joined
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, fold
from muniment.operations.place import Place
from muniment.store.review import pending
from muniment.store.upkeep import view_of


class KnownTexts:
    """What the memory says, and what waits to be said."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._views = [view_of(place.state, root, place.policy) for root in place.roots.values()]
        self._ids = {each for view in self._views for each in view.idents()}
        keys = place.scopes_by_key().keys()
        self._waiting = {
            comparable(parse(change.after).body): review.id
            for review in pending(place.state)
            for change in review.change_set.changes
            if change.after is not None and keys >= set(review.roots.values())
        }
        self._taken: set[str] = set()
        self._brought: set[str] = set()

    def knows(self, identity: str, text: str, trust: Trust, expires: str | None) -> bool:
        """Whether an item stands there, or stood in the source before."""
        is_there = comparable(text) in self._taken or identity in self._ids
        return is_there or self.is_said(text, trust, expires)

    def take(self, text: str) -> None:
        """An item is to say it."""
        self._taken.add(comparable(text))

    def is_said(self, text: str, trust: Trust, expires: str | None) -> bool:
        """Whether an entry that this import did not bring says it: trusted so far, and as long."""
        last = "" if expires is None else expiry_time(expires)
        return any(
            each.trust.satisfies(trust)
            and (each.expires is None or (bool(last) and expiry_time(each.expires) >= last))
            and each.held is None
            and f"{view.scope}/{each.rel}" not in self._brought
            for view in self._views
            for each in view.saying(comparable(text))
        )

    def bring(self, path: CanonicalPath) -> None:
        """An entry came."""
        self._brought.add(path.text)

    def has_id(self, identity: str) -> bool:
        """Whether an entry had that id before this import; copies of an entry in one export have the same."""
        return identity in self._ids

    def came(self, identities: Iterable[str]) -> set[str]:
        """Those of some ids that entries have by now."""
        return {each for view in self._views for each in view.idents()}.intersection(identities)

    def waiting(self, text: str) -> str | None:
        """The review in which a text waits."""
        return self._waiting.get(comparable(text))

    def at(self, path: CanonicalPath) -> bytes | None:
        """What stands at a path; None: nothing that can be read."""
        try:
            return self._place.read(path)
        except (KeyError, PathEscape, ToolError):
            return None


class ImportNames:
    """Names that are taken, in the roots and by what came before."""

    def __init__(self, place: Place) -> None:
        self._views = {scope: view_of(place.state, root, place.policy) for scope, root in place.roots.items()}
        self._taken: dict[tuple[Scope, str], set[str]] = {}
        self._next: dict[tuple[Scope, str], int] = {}

    def has(self, path: CanonicalPath) -> bool:
        """Whether something has that name, or one that is it but for case."""
        folder, _, name = path.rel.rpartition("/")
        return fold(name) in self._names(path.scope, folder)

    def take(self, path: CanonicalPath) -> None:
        """A name is given."""
        folder, _, name = path.rel.rpartition("/")
        self._names(path.scope, folder).add(fold(name))

    def free(self, scope: Scope, folder: str, stem: str) -> CanonicalPath:
        """The first numbering of a name that is free; in a folder that is there, as that is spelled."""
        if folder and (scope, folder) not in self._taken:
            view = self._views.get(scope)
            folder = folder if view is None else min(view.alike("", folder), default=folder)
        names = self._names(scope, folder)
        number = self._next.get((scope, joined(folder, stem)), 1)
        while fold(name := f"{stem}-{number}{FILE_SUFFIX}" if number > 1 else stem + FILE_SUFFIX) in names:
            number += 1
        self._next[scope, joined(folder, stem)] = number
        return CanonicalPath(scope, joined(folder, name))

    def _names(self, scope: Scope, folder: str) -> set[str]:
        if (scope, folder) not in self._taken:
            found = self._views[scope].names(folder) or () if scope in self._views else ()
            self._taken[scope, folder] = {fold(name) for name in found}
        return self._taken[scope, folder]
