"""Select the parts of a memory that a conversation starts with, for any query.

Three tiers with separate budgets; the first tier with room for an entry injects it, once:

1. *system*: entries of the scope `user` with trust `owner`, and the owner's sentences of mixed entries, for
   the system prompt. Text of lower trust never gets into it.
2. *project*: all other entries, fenced as data, for the first message of the user. Entries of trust
   `external` come last: any number of them takes the place of no other entry.
3. *just in time*: other entries about a path that the conversation touches: a folder or keyword of the entry
   is the name of the file, or of a folder above it.

Entries that have ended, according to their text, are in neither of the first two; a recall still finds them.
In the first two, pinned entries (in the folder `pinned/`) come first, then the newest. The system part is the
same text as long as the memory is unchanged, so that a provider can cache it.

Attacked in tests/units/recall/test_context.py.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import Final

from muniment.content.expiry import compute_local_day
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import Scope, Trust
from muniment.kernel.path import fold
from muniment.recall.reading import ReadEntry
from muniment.recall.recaller import MAX_TOKENS, Recaller
from muniment.recall.root_reader import RootReader
from muniment.recall.search import DISPLAYABLE_IN_ROOTS, HIT_COLUMNS, Hit, build_hit
from muniment.recall.stems import Stemmer
from muniment.store.database import Database
from muniment.store.rows import normalize_for_index
from muniment.types import Recalled
from muniment.types.keys import EntryKey, RootKey

PINNED_FOLDER: Final = "pinned"
"""The folder of a scope whose entries come first, in any spelling of its name; policies protect it."""

MAX_LISTED: Final = 100
"""Maximum entries of a listing; no budget has room for more."""

MAX_PATH_CHARS: Final = 4_096
"""Characters of a workspace path: the maximum of Linux; a longer one matches nothing."""

_MAX_FOLDERS: Final = 12

_LISTED_ROWS: Final = f"""
    SELECT {HIT_COLUMNS} FROM entry
    WHERE {DISPLAYABLE_IN_ROOTS} AND (entry.ends IS NULL OR entry.ends >= ?)
        AND (entry.trust IN (SELECT value FROM json_each(?)) OR entry.mixed AND ?)
    ORDER BY entry.sort LIKE '{PINNED_FOLDER}/%' DESC, entry.mtime_ns DESC, entry.rel
    LIMIT {MAX_LISTED}
"""  # noqa: S608  constants of this package

_PATH_ROWS: Final = f"""
    SELECT {HIT_COLUMNS}, entry.topic, entry.keywords
    FROM text CROSS JOIN entry ON entry.id = text.rowid
    WHERE text MATCH ? AND {DISPLAYABLE_IN_ROOTS} ORDER BY rank LIMIT {MAX_LISTED}
"""  # noqa: S608  constants of this package


def list_entries(
    catalog: Database,
    roots: Sequence[RootKey],
    trusts: Sequence[Trust],
    now: str,
    deadline: Deadline,
    *,
    mixed: bool = False,
) -> list[Hit]:
    """Return the entries of some roots and trusts: pinned first, then the newest; at most `MAX_LISTED`.

    Args:
        catalog: up to date.
        roots: the roots to list.
        trusts: by the rows; code that displays an entry checks the ledger (`reading.py`).
        now: ISO-8601 UTC; entries that have expired or ended by then are not listed.
        deadline: the time limit.
        mixed: also list entries of any trust that have sentences of the owner.

    Raises:
        ManagedMemoryUnavailable, Cancelled, DeadlineExceeded: as `Database.rows`.

    Cost: 30 ms in a memory of 100 000 entries.
    """
    today = str(compute_local_day(datetime.fromisoformat(now)))
    values = (json.dumps(list(roots)), now, today, json.dumps(list(trusts)), mixed)
    return [build_hit(row) for row in catalog.rows(_LISTED_ROWS, values, deadline=deadline)]


def find_by_path(
    catalog: Database,
    stemmer: Stemmer,
    roots: Sequence[RootKey],
    unsafe_path: str,
    now: str,
    deadline: Deadline,
) -> list[Hit]:
    """Return the entries with a folder or keyword that is the name of a path's file or of a folder above.

    The innermost `_MAX_FOLDERS` folders of the path count, and the best `MAX_LISTED` entries.

    Args:
        catalog: up to date.
        stemmer: the caller closes it.
        roots: the roots to search.
        unsafe_path: of a workspace file, absolute or not; only compared, never opened.
        now: ISO-8601 UTC; entries that have expired by then are not listed.
        deadline: the time limit.

    Raises:
        ManagedMemoryUnavailable, Cancelled, DeadlineExceeded: as `Database.rows`.

    Cost: a search for the words of the path.
    """
    if len(unsafe_path) > MAX_PATH_CHARS:
        return []
    path = PurePosixPath(unsafe_path)
    names = [fold(part) for part in (path.stem, *reversed(path.parts[:-1]))][:_MAX_FOLDERS]
    words = {term.word for name in names for term in stemmer.split_terms(normalize_for_index(name))}
    if not words:
        return []
    expression = "{context} : (" + " OR ".join(f'"{word}"' for word in sorted(words)) + ")"
    rows = catalog.rows(_PATH_ROWS, (expression, json.dumps(list(roots)), now), deadline=deadline)
    return [
        build_hit(tuple(row))
        for *row, topic, keywords in rows
        if not {fold(each) for each in (*topic.split("/"), *json.loads(keywords))}.isdisjoint(names)
    ]


GLOBAL_SCOPE: Final = Scope("user")
"""The scope of the owner's facts that apply to all work."""

SEPARATOR: Final = "\n\n---\n\n"
"""Text between the system prompt of a host and the memory's part."""

_MAX_READ: Final = 40
"""Maximum entries of a tier that are read; no budget has room for more."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """Tokens that a memory may take of a conversation.

    Attributes:
        system, project, just_in_time: of these tiers, until the conversation is compacted.
        recalled: of each recall.
        share: share of the model's limit; if all together exceed it, an event is logged.
        results: of tool results in the history; older ones are shortened. None: no limit.
    """

    system: int = 1_000
    project: int = 1_500
    just_in_time: int = 1_000
    recalled: int = MAX_TOKENS
    share: float = 0.25
    results: int | None = None


class StaticContext:
    """The three tiers for one conversation. Threads may share one.

    Args:
        recaller: the caller closes it.
        budgets: of the tiers.
        injected: entries that the project tier injected into this conversation; None: not injected yet.
    """

    def __init__(
        self, recaller: Recaller, budgets: Budgets, injected: Collection[EntryKey] | None = None
    ) -> None:
        self._recaller, self._budgets = recaller, budgets
        self._lock = threading.Lock()
        self._system, self._project = Recalled(), Recalled()
        self._mixed = frozenset[EntryKey]()
        self._injected_project = frozenset(injected or ())
        self._is_project_due = injected is None

    def refresh(self, deadline: Deadline) -> None:
        """Read the system and project tiers again; the project tier too, because it may be injected again.

        After an error they stay unchanged.

        Cost: reading some dozen files; so it runs on a thread, or before a conversation.
        """
        system = self._recaller.run_with_roots(
            lambda roots: self._read_system(roots, deadline), [GLOBAL_SCOPE], deadline
        )
        with self._lock:
            if system.error is None:
                self._system = system
            known = self._complete_keys
        project = self._recaller.run_with_roots(
            lambda roots: self._read_project(roots, known, deadline), None, deadline
        )
        with self._lock:
            if project.error is None:
                self._project = project

    @property
    def system(self) -> Recalled:
        """Return the system tier."""
        with self._lock:
            return self._system

    @property
    def keys(self) -> frozenset[EntryKey]:
        """Return the entries of the first two tiers that were injected or are about to be."""
        with self._lock:
            return (
                self._complete_keys
                | self._injected_project
                | (self._project.keys if self._is_project_due else frozenset())
            )

    @property
    def injected_project(self) -> frozenset[EntryKey] | None:
        """Return the entries that the project tier injected; None: it was not injected yet."""
        with self._lock:
            return None if self._is_project_due else self._injected_project

    def take_project(self, injected: Collection[EntryKey]) -> Recalled | None:
        """Return the project tier, once; None: it was already injected, or is still empty.

        Args:
            injected: entries that the conversation received elsewhere, which are left out.
        """
        with self._lock:
            if not self._is_project_due:
                return None
            project, known = self._project, self._complete_keys.union(injected)
        project = self._recaller.remove_entries(project, known, self._budgets.project)
        if not project.entries:
            return None
        with self._lock:
            self._is_project_due, self._injected_project = False, project.keys
        return project

    def reset_project(self) -> None:
        """Mark the project tier for injection again, because the conversation lost the injected text."""
        with self._lock:
            self._is_project_due, self._injected_project = True, frozenset()

    def find_for_paths(
        self, unsafe_paths: Sequence[str], exclude: Collection[EntryKey], budget: int, deadline: Deadline
    ) -> Recalled:
        """Return the entries of the third tier for some paths.

        Args:
            unsafe_paths: of workspace files; only compared.
            exclude: entries that were already injected.
            budget: tokens.
            deadline: the time limit.
        """
        recaller = self._recaller

        def work(reader: RootReader) -> Recalled:
            def find_hits() -> list[Hit]:
                found: dict[EntryKey, Hit] = {}
                for path in unsafe_paths:
                    about = find_by_path(
                        recaller.catalog, recaller.stemmer, reader.keys, path, recaller.now, deadline
                    )
                    found |= {hit.key: hit for hit in about if hit.key not in exclude}
                return list(found.values())

            return recaller.build_result(_read_entries(find_hits, reader), reader, budget)

        return recaller.run_with_roots(work, None, deadline)

    def _read_system(self, reader: RootReader, deadline: Deadline) -> Recalled:
        readings = _read_entries(
            lambda: self._list_entries(reader, [Trust.OWNER], deadline, mixed=True), reader
        )
        owned = [each for reading in readings if (each := reading.owner_part)]  # By the ledger, not by a row.
        self._mixed = frozenset(each.hit.key for each in readings if each.trust is not Trust.OWNER)
        return self._recaller.build_result(owned, reader, self._budgets.system, is_system=True)

    def _read_project(self, reader: RootReader, known: Collection[EntryKey], deadline: Deadline) -> Recalled:
        def find_hits() -> list[Hit]:
            found = [
                *self._list_entries(
                    reader, [trust for trust in Trust if trust is not Trust.EXTERNAL], deadline
                ),
                *self._list_entries(reader, [Trust.EXTERNAL], deadline),
            ]
            return [hit for hit in found if hit.key not in known]

        return self._recaller.build_result(_read_entries(find_hits, reader), reader, self._budgets.project)

    def _list_entries(
        self, reader: RootReader, trusts: Sequence[Trust], deadline: Deadline, *, mixed: bool = False
    ) -> list[Hit]:
        recaller = self._recaller
        return list_entries(recaller.catalog, reader.keys, trusts, recaller.now, deadline, mixed=mixed)

    @property
    def _complete_keys(self) -> frozenset[EntryKey]:
        """Return the entries that the system tier contains completely."""
        return self._system.keys - self._mixed


def _read_entries(hits: Callable[[], Sequence[Hit]], reader: RootReader) -> list[ReadEntry]:
    """Read the entries of some hits; search and read once more if files differ from their rows."""

    def list_displayable() -> list[Hit]:
        return [hit for hit in hits() if reader.can_display(hit.key.root, hit.key.rel)]

    return reader.find_and_read(list_displayable, _MAX_READ).readings
