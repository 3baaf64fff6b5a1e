"""Select the parts of a memory that a conversation starts with, for any query.

There are three tiers, each with its own budget of tokens. The first tier that has room for an entry injects
it, and no other tier injects it again:

1. *system*: entries of the scope `user` with trust `owner`, for the system prompt. Of an entry with mixed
   trust, only the owner's sentences are used. Text of lower trust never gets into the system prompt.
2. *project*: all other entries, marked as data, for the first message of the user. Entries of trust
   `external` come last, so that they never displace other entries.
3. *just in time*: other entries about a file that the conversation touches. Such an entry has a folder or
   keyword that is the name of the file or of a folder above it.

The first two tiers omit entries that no longer apply according to their text; a recall still finds these. In
both tiers, pinned entries (in the folder `pinned/`) come first, then the newest. While the memory is
unchanged, the system part is always the same text, so that a provider can cache it.

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

from muniment.content.entry import PINNED_FOLDER
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

MAX_LISTED: Final = 100
"""Maximum number of entries that a listing returns; no budget has room for more."""

MAX_PATH_CHARS: Final = 4_096
"""Maximum characters of a workspace path, as in Linux; a longer path matches no entry."""

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
    """Return the entries of some roots with certain trusts: pinned ones first, then the newest.

    At most `MAX_LISTED` entries are returned.

    Args:
        catalog: an up-to-date catalog.
        roots: the roots to list.
        trusts: list entries with one of these trusts, according to the catalog. Before an entry is displayed,
            `reading.py` checks its trust in the ledger.
        now: the time, ISO-8601 UTC; entries that have expired or ended by then are not listed.
        deadline: the time limit.
        mixed: also list entries of any trust that contain sentences of the owner.

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
    """Return the entries about a file.

    A folder or keyword of such an entry is the name of the file or of a folder above it. Only the innermost
    `_MAX_FOLDERS` names of the path count. At most `MAX_LISTED` entries are returned.

    Args:
        catalog: an up-to-date catalog.
        stemmer: cuts words; the caller closes it.
        roots: the roots to search.
        unsafe_path: the path of a workspace file, absolute or relative; only compared, never opened.
        now: the time, ISO-8601 UTC; entries that have expired by then are not returned.
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
"""Text between the host's system prompt and the part of the memory in it."""

_MAX_READ: Final = 40
"""Maximum number of entries that are read for a tier; no budget has room for more."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """The tokens that the memory may use in a conversation.

    Attributes:
        system, project, just_in_time: the tokens of each tier (`recall.context`), until the conversation is
            compacted.
        recalled: the tokens of each recall.
        share: a share of the model's token limit; if the memory uses more in total, an event is logged.
        results: the tokens of tool results in the history; if they take more, older ones are shortened. None:
            no limit.
    """

    system: int = 1_000
    project: int = 1_500
    just_in_time: int = 1_000
    recalled: int = MAX_TOKENS
    share: float = 0.25
    results: int | None = None


class StaticContext:
    """The three tiers of entries for one conversation, see the module. Threads may share it.

    Args:
        recaller: searches the memory; the caller closes it.
        budgets: the tokens of each tier.
        injected: entries that the project tier injected earlier into this conversation; None: not injected
            yet.
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
        """Read the system and project tiers again; if an error occurs, a tier stays unchanged.

        The project tier is also read if it was already injected, because a compaction may require it again.

        Cost: reading some dozen files; therefore call this on a thread, or before the conversation.
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
        """Return the entries and the text of the system tier."""
        with self._lock:
            return self._system

    @property
    def keys(self) -> frozenset[EntryKey]:
        """Return the entries of the system and project tiers that were injected or will be injected.

        Entries of which the system tier contains only a part are not included.
        """
        with self._lock:
            return (
                self._complete_keys
                | self._injected_project
                | (self._project.keys if self._is_project_due else frozenset())
            )

    @property
    def injected_project(self) -> frozenset[EntryKey] | None:
        """Return the entries that the project tier injected; None if it was not injected yet."""
        with self._lock:
            return None if self._is_project_due else self._injected_project

    def take_project(self, injected: Collection[EntryKey]) -> Recalled | None:
        """Return the project tier for injection, once; None if it was already injected, or has no entries.

        Args:
            injected: entries that the conversation received in other ways; they are omitted.
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
        """Allow the project tier to be injected again.

        Call this when the conversation no longer contains the text of this tier.
        """
        with self._lock:
            self._is_project_due, self._injected_project = True, frozenset()

    def find_for_paths(
        self, unsafe_paths: Sequence[str], exclude: Collection[EntryKey], budget: int, deadline: Deadline
    ) -> Recalled:
        """Return the entries about some files (tier *just in time*).

        Args:
            unsafe_paths: paths of workspace files; only compared, never opened.
            exclude: entries that were already injected.
            budget: maximum tokens.
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
        """Return the entries of the system tier, except those of which it contains only some sentences."""
        return self._system.keys - self._mixed


def _read_entries(hits: Callable[[], Sequence[Hit]], reader: RootReader) -> list[ReadEntry]:
    """Read the displayable entries of some hits; if files differ from their rows, search and read again."""

    def list_displayable() -> list[Hit]:
        return [hit for hit in hits() if reader.can_display(hit.key.root, hit.key.rel)]

    return reader.find_and_read(list_displayable, _MAX_READ).readings
