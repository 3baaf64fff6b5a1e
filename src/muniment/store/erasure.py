"""What the ledger holds of files that are to be erased, and how it goes; `erase.py` says when.

A version of a file is one side of a row of `change`. Gone are the versions of the erased files, and those of
any other file that hold a run of their text (`traces.py`) which no file holds any more.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from muniment.content.entry import parse
from muniment.names import RelPath, Scope
from muniment.store import audit
from muniment.store.ledger import ERASED, Origin, RootKey, erased_name
from muniment.store.state import State
from muniment.store.tasks import Clearing, clear, concerned
from muniment.store.traces import Runs, telling

_File = tuple[RootKey, RelPath]
_Side = tuple[int, int, str]
"""A commit, a position in it, and `before` or `after`."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be erased.

    Attributes:
        files: every version of these.
        paths: their logical paths, by every name that their scopes had or have.
        tasks: what is known of these besides files.
    """

    files: frozenset[_File]
    paths: frozenset[str]
    tasks: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Found:
    """What the ledger holds of a target.

    Attributes:
        versions: the target's own.
        others: likewise, of other files that hold a run of its text.
        other_paths: the logical paths of those.
        tasks: that wrote the target's versions.
        facts: keyed digests of what they were asked, and of the text itself.
        reviews: ids.
        records: numbers.
        lane_tasks: those of lanes that hold something of it, and what is left of them.
        runs: of its text.
    """

    versions: frozenset[_Side]
    others: frozenset[_Side]
    other_paths: tuple[str, ...]
    tasks: frozenset[str]
    facts: frozenset[str]
    reviews: tuple[str, ...]
    records: tuple[int, ...]
    lane_tasks: tuple[Clearing, ...]
    runs: Runs


def search(
    state: State, target: Target, present: Collection[bytes], remaining: Callable[[], Iterator[bytes]]
) -> Found:
    """Find everything that the ledger holds of `target`.

    Args:
        state: whose ledger; inside a transaction as that sees it.
        target: what is to be erased.
        present: what its files hold now.
        remaining: the content of every file that stays.

    Cost: reads every version in the ledger and every file that stays; about 0.1 s for 5 MB.
    """
    versions, tasks, facts, texts = set[_Side](), set(target.tasks), set[str](), set(present)
    for row in _changes(state):
        if (row.root, row.rel) in target.files:
            tasks.add(row.task)
            facts |= {row.fact} if row.fact is not None else set()
            versions |= row.sides.keys()
            texts |= set(row.sides.values())
    reviews = _reviews(state)
    ours = {each: kept for each, kept in reviews.items() if _is_about(kept, target, tasks)}
    for kept in ours.values():
        texts |= kept.texts
        facts |= {kept.fact} if kept.fact is not None else set()
    facts |= {state.keyed(body) for text in texts if (body := parse(text).body.strip())}
    runs = Runs(part for text in texts for part in telling(text)).without(remaining())
    ours |= {each: kept for each, kept in reviews.items() if any(map(runs.found_in, kept.texts))}
    others = {
        side: row
        for row in _changes(state)
        for side, content in row.sides.items()
        if side not in versions and runs.found_in(content)
    }
    marked = tasks | {row.task for row in others.values()}
    return Found(
        frozenset(versions),
        frozenset(others),
        tuple(sorted({row.path for row in others.values()})),
        frozenset(tasks),
        frozenset(facts),
        tuple(sorted(ours)),
        _records(state, target, marked, runs),
        concerned(state, tasks, target.paths, facts, runs),
        runs,
    )


def drop(state: State, target: Target, found: Found, origin: Origin) -> None:
    """Take everything that was found out of the rows, in one transaction, with a record of it.

    None of the tasks that were found runs.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written. Nothing of it holds.
    """
    with state.ledger.transaction() as connection:
        for number, position, side in found.versions | found.others:
            # Side is one of two words, see `_Side`.
            here = "change_set = ? AND position = ?"
            of_it = f"SELECT root, rel, {side}_digest FROM change WHERE {here}"  # noqa: S608
            gone = f"UPDATE change SET {side} = NULL, {side}_digest = ? WHERE {here}"  # noqa: S608
            from_it = f"DELETE FROM provenance WHERE (root, rel, digest) IN ({of_it})"  # noqa: S608
            connection.execute(from_it, (number, position))
            connection.execute(gone, (ERASED, number, position))
        for root, rel in target.files:
            connection.execute("DELETE FROM provenance WHERE root = ? AND rel = ?", (root, rel))
            connection.execute(
                "UPDATE change SET rel = ?, made = '[]' WHERE root = ? AND rel = ?",
                (erased_name(state, root, rel), root, rel),
            )
        each = [(task,) for task in found.tasks]
        connection.executemany("UPDATE change_set SET fact = NULL WHERE task = ?", each)
        connection.executemany(
            "UPDATE change_set SET notes = '[]' WHERE task = ?", _noted(state, target, found)
        )
        connection.executemany(
            "INSERT OR IGNORE INTO forgotten (fact, at, task) VALUES (?, ?, ?)",
            [(fact, origin.at, origin.task) for fact in found.facts],
        )
        connection.executemany("DELETE FROM review WHERE id = ?", [(each,) for each in found.reviews])
        connection.executemany(
            "UPDATE record SET body = NULL WHERE seq = ?", [(seq,) for seq in found.records]
        )
        clear(state, found.lane_tasks, origin.at)
        body = {
            "records": list(found.records),
            "versions": len(found.versions) + len(found.others),
            "reviews": len(found.reviews),
            "lane_tasks": len(found.lane_tasks),
            "files": sorted(erased_name(state, root, rel) for root, rel in target.files),
        }
        audit.append(state, origin.at, audit.ERASE, origin.task, body)


def scrub(state: State) -> None:
    """Leave nothing of what was deleted in the files of the state directory; the catalog is empty afterwards.

    Raises:
        ManagedMemoryUnavailable: the disk is full, or another process reads the ledger for too long.

    Cost: writes the ledger anew; while that lasts it needs as much room again.
    """
    with state.ledger.bare() as connection:
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("VACUUM")
    state.ledger.drain()
    state.remove_copies()
    state.renew_catalog()


@dataclass(frozen=True, slots=True)
class _Change:
    """One row of `change` of a commit that is done, with the sides of which the bytes are known."""

    task: str
    fact: str | None
    root: RootKey
    scope: Scope
    rel: RelPath
    sides: Mapping[_Side, bytes]

    @property
    def path(self) -> str:
        return f"{self.scope}/{self.rel}"


def _changes(state: State) -> Iterator[_Change]:
    """Every change in the ledger; one at a time, since all of them may be more than fits into memory."""
    with state.ledger.bare() as connection:
        for number, position, task, fact, root, scope, rel, before, after in connection.execute(
            "SELECT change_set, position, task, fact, root, scope, rel, before, after "
            "FROM change JOIN change_set ON change_set.id = change_set WHERE done IS NOT NULL"
        ):
            known = {"before": before, "after": after}
            sides = {(number, position, side): each for side, each in known.items() if each is not None}
            yield _Change(task, fact, root, scope, rel, sides)


@dataclass(frozen=True, slots=True)
class _Review:
    task: str
    fact: str | None
    files: frozenset[_File]
    texts: frozenset[bytes]
    reasons: str


def _reviews(state: State) -> dict[str, _Review]:
    """Every review by id; of one that was decided only why it had waited is left."""
    found: dict[str, _Review] = {}
    for review_id, task, reasons, proposal in state.ledger.rows(
        "SELECT id, task, reasons, proposal FROM review"
    ):
        kept = json.loads(proposal) if proposal is not None else None
        if kept is None:
            found[review_id] = _Review(task, None, frozenset(), frozenset(), reasons)
            continue
        paths = [each[0].partition("/") for each in kept["changes"] + kept["removals"] + kept["claims"]]
        files = {(kept["roots"].get(scope), RelPath(rel)) for scope, _, rel in paths}
        texts = map(base64.b64decode, kept["texts"])
        found[review_id] = _Review(task, kept["origin"][6], frozenset(files), frozenset(texts), reasons)
    return found


def _is_about(review: _Review, target: Target, tasks: Collection[str]) -> bool:
    names_it = any(path in review.reasons for path in target.paths)
    return names_it or review.task in tasks or not target.files.isdisjoint(review.files)


def _noted(state: State, target: Target, found: Found) -> list[tuple[str]]:
    """The tasks whose notes go: those of the target, and any other that names it."""
    rows = state.ledger.rows("SELECT task, notes FROM change_set WHERE notes <> '[]'")
    return [
        (task,)
        for task, notes in rows
        if task in found.tasks or any(path in note for note in json.loads(notes) for path in target.paths)
    ]


def _records(state: State, target: Target, tasks: Collection[str], runs: Runs) -> tuple[int, ...]:
    """The records that say something of it; those of erasures hold only numbers and keyed digests."""
    found: list[int] = []
    for seq, task, body in state.ledger.rows(
        "SELECT seq, task, body FROM record WHERE body IS NOT NULL AND kind <> ? ORDER BY seq", (audit.ERASE,)
    ):
        names_it = any(path in body for path in target.paths)
        if names_it or task in tasks or runs.found_in(body.encode()):
            found.append(seq)
    return tuple(found)


def is_forgotten(state: State, text: str) -> bool:
    """Whether the body of an erased entry, or what was asked for it, said exactly this."""
    return bool(state.ledger.rows("SELECT 1 FROM forgotten WHERE fact = ?", (state.keyed(text.strip()),)))
