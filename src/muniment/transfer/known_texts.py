"""The texts and names that a memory already has during an import.

Separate from `importing.py`, which decides: this module only reads.
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
    """The texts in the memory and in pending reviews."""

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
        """Return whether the memory has an item, or an earlier import of this source added it."""
        is_there = comparable(text) in self._taken or identity in self._ids
        return is_there or self.is_said(text, trust, expires)

    def take(self, text: str) -> None:
        """Record that an item with this text will be written."""
        self._taken.add(comparable(text))

    def is_said(self, text: str, trust: Trust, expires: str | None) -> bool:
        """Return whether an entry from before this import has the text, with enough trust and lifetime."""
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
        """Record the path of an imported entry."""
        self._brought.add(path.text)

    def has_id(self, identity: str) -> bool:
        """Return whether an entry had that id before this import.

        Copies of one entry in an export share their id.
        """
        return identity in self._ids

    def came(self, identities: Iterable[str]) -> set[str]:
        """Return the given ids that entries have now."""
        return {each for view in self._views for each in view.idents()}.intersection(identities)

    def waiting(self, text: str) -> str | None:
        """Return the pending review that contains a text, or None."""
        return self._waiting.get(comparable(text))

    def at(self, path: CanonicalPath) -> bytes | None:
        """Return the bytes at a path, or None if it cannot be read."""
        try:
            return self._place.read(path)
        except (KeyError, PathEscape, ToolError):
            return None


class ImportNames:
    """The names in use: existing files and the items imported before."""

    def __init__(self, place: Place) -> None:
        self._views = {scope: view_of(place.state, root, place.policy) for scope, root in place.roots.items()}
        self._taken: dict[tuple[Scope, str], set[str]] = {}
        self._next: dict[tuple[Scope, str], int] = {}

    def has(self, path: CanonicalPath) -> bool:
        """Return whether a file has that name, ignoring case."""
        folder, _, name = path.rel.rpartition("/")
        return fold(name) in self._names(path.scope, folder)

    def take(self, path: CanonicalPath) -> None:
        """Record that a name is in use."""
        folder, _, name = path.rel.rpartition("/")
        self._names(path.scope, folder).add(fold(name))

    def free(self, scope: Scope, folder: str, stem: str) -> CanonicalPath:
        """Return the first free numbered name; an existing folder keeps its spelling."""
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
