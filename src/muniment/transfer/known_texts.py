"""Look up the texts, ids and names that a memory already has during an import.

Separate from `importing.py`, which decides: this module only reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from muniment.content.entry import parse
from muniment.content.expiry import compute_expiry_time
from muniment.content.words import build_comparison_key
from muniment.errors import PathEscape, ToolError
from muniment.kernel.names import Scope, Trust, join_path
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, fold
from muniment.operations.job_context import JobContext
from muniment.store.review import read_pending
from muniment.store.upkeep import open_view


class KnownTexts:
    """The texts and ids in the memory and the texts in pending reviews, for one import."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._views = [open_view(context.state, root, context.policy) for root in context.roots.values()]
        self._ids = {each for view in self._views for each in view.read_claimed_ids()}
        keys = context.map_keys_to_scopes().keys()
        self._pending_reviews = {
            build_comparison_key(parse(change.after).body): review.id
            for review in read_pending(context.state)
            for change in review.change_set.changes
            if change.after is not None and keys >= set(review.roots.values())
        }
        self._added_texts: set[str] = set()
        self._imported_paths: set[str] = set()

    def is_known(self, identity: str, text: str, trust: Trust, expires: str | None) -> bool:
        """Return whether the memory already has an item, or an earlier import added it.

        Args:
            identity: the id that the entry of the item would have.
            text: the text of the item.
            trust: an entry with the text counts only if its trust is at least this one.
            expires: an entry with the text counts only if it does not expire before this date; None: it must
                not expire.
        """
        is_present = build_comparison_key(text) in self._added_texts or identity in self._ids
        return is_present or self.has_text(text, trust, expires)

    def add_text(self, text: str) -> None:
        """Record that this import will write an item with this text."""
        self._added_texts.add(build_comparison_key(text))

    def has_text(self, text: str, trust: Trust, expires: str | None) -> bool:
        """Return whether an entry from before this import has the text.

        Args:
            text: the text.
            trust: entries with less trust do not count.
            expires: entries that expire before this date do not count; None: the entry must not expire.
        """
        end_date = "" if expires is None else compute_expiry_time(expires)
        return any(
            each.trust.satisfies(trust)
            and (each.expires is None or (bool(end_date) and compute_expiry_time(each.expires) >= end_date))
            and each.held is None
            and f"{view.scope}/{each.rel}" not in self._imported_paths
            for view in self._views
            for each in view.find_statement(build_comparison_key(text))
        )

    def add_imported_path(self, path: CanonicalPath) -> None:
        """Record that this import wrote an entry at `path`."""
        self._imported_paths.add(path.text)

    def has_id(self, identity: str) -> bool:
        """Return whether an entry had this id before this import.

        Entries of this import do not count: copies of one entry in an export share their id.
        """
        return identity in self._ids

    def find_present_ids(self, identities: Iterable[str]) -> set[str]:
        """Return which of the given ids entries of the memory have now."""
        return {each for view in self._views for each in view.read_claimed_ids()}.intersection(identities)

    def find_pending_review(self, text: str) -> str | None:
        """Return the id of the pending review that contains the text, or None."""
        return self._pending_reviews.get(build_comparison_key(text))

    def read_or_none(self, path: CanonicalPath) -> bytes | None:
        """Return the bytes of the file at `path`, or None if it cannot be read."""
        try:
            return self._context.read_file(path)
        except (KeyError, PathEscape, ToolError):
            return None


class ImportNames:
    """The file names in use: those of existing files and those that this import has reserved."""

    def __init__(self, context: JobContext) -> None:
        self._views = {
            scope: open_view(context.state, root, context.policy) for scope, root in context.roots.items()
        }
        self._used_names: dict[tuple[Scope, str], set[str]] = {}
        self._next_number: dict[tuple[Scope, str], int] = {}

    def is_used(self, path: CanonicalPath) -> bool:
        """Return whether the name of `path` is in use in its folder, ignoring case."""
        folder, _, name = path.rel.rpartition("/")
        return fold(name) in self._load_used_names(path.scope, folder)

    def reserve(self, path: CanonicalPath) -> None:
        """Record that the name of `path` is in use."""
        folder, _, name = path.rel.rpartition("/")
        self._load_used_names(path.scope, folder).add(fold(name))

    def find_free_path(self, scope: Scope, folder: str, stem: str) -> CanonicalPath:
        """Return the first free path: `stem.md`, then `stem-2.md` and so on.

        If the folder exists with another spelling, for example in upper case, that spelling is used.
        """
        if folder and (scope, folder) not in self._used_names:
            view = self._views.get(scope)
            folder = folder if view is None else min(view.find_aliases("", folder), default=folder)
        names = self._load_used_names(scope, folder)
        number = self._next_number.get((scope, join_path(folder, stem)), 1)
        while fold(name := f"{stem}-{number}{FILE_SUFFIX}" if number > 1 else stem + FILE_SUFFIX) in names:
            number += 1
        self._next_number[scope, join_path(folder, stem)] = number
        return CanonicalPath(scope, join_path(folder, name))

    def _load_used_names(self, scope: Scope, folder: str) -> set[str]:
        if (scope, folder) not in self._used_names:
            found = self._views[scope].names(folder) or () if scope in self._views else ()
            self._used_names[scope, folder] = {fold(name) for name in found}
        return self._used_names[scope, folder]
