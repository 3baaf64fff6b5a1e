"""The row of an entry in the catalog, made of its bytes and of what the caller makes of them. Pure.

Of an entry that is held, and of one that cannot be read, nothing is kept but path, size and digest: its text,
name, description and keywords stand in no column, so that nobody who reads rows can let them out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from muniment.content.entry import parse, titled
from muniment.names import Digest, RelPath, Trust
from muniment.policy.grammar import FILE_SUFFIX, fold
from muniment.store.fulltext import Columns, columns
from muniment.store.index import IndexRow, entry_line


@dataclass(frozen=True, slots=True)
class Assessed:
    """What somebody who knows the ledger and the gates makes of a file.

    Attributes:
        trust: who it comes from.
        expires: when it is no longer to be told, ISO-8601 UTC; None if never.
        held: the gate that holds its text back; None if it may be told.
    """

    trust: Trust
    expires: str | None = None
    held: str | None = None


Assess = Callable[[RelPath, Digest, bytes], Assessed]
"""Asked once for each file that is read: its path inside the scope, its digest, its bytes."""


class Row(NamedTuple):
    """Columns of an entry, in the order of the table, without what identifies its file."""

    rel: str
    topic: str
    key: str
    sort: str
    digest: str
    name: str
    description: str
    type: str | None
    keywords: str
    trust: str
    expires: str | None
    readable: int
    held: str | None
    note: str
    line: str
    line_bytes: int


def row_of(rel: RelPath, data: bytes, assess: Assess) -> tuple[Row, Columns | None]:
    """The row of an entry that was read, and its words unless it is held.

    Raises:
        Whatever `assess` does.
    """
    digest = Digest(hashlib.sha256(data).hexdigest())
    assessed = assess(rel, digest, data)
    if assessed.held is not None:
        return _bare(rel, digest, assessed, ""), None
    entry = parse(data)
    titles = titled(entry, rel)
    row = _row(
        IndexRow(rel, titles.name, titles.description, assessed.trust),
        digest,
        assessed,
        entry.type,
        entry.keywords,
        "; ".join(entry.notes),
    )
    return row, columns(rel, titles.name, titles.description, entry.body, entry.keywords)


def unreadable_row(rel: RelPath, note: str) -> Row:
    """The row of an entry that cannot be read; nobody knows who it comes from, so it is trusted least."""
    return _bare(rel, None, Assessed(Trust.EXTERNAL), note)


def _bare(rel: RelPath, digest: Digest | None, assessed: Assessed, note: str) -> Row:
    stem = rel.rpartition("/")[2].removesuffix(FILE_SUFFIX)
    index = IndexRow(
        rel, stem, "", assessed.trust, readable=digest is not None, held=assessed.held is not None
    )
    return _row(index, digest, assessed, None, (), note)


def _row(
    index: IndexRow,
    digest: Digest | None,
    assessed: Assessed,
    type_: str | None,
    keywords: tuple[str, ...],
    note: str,
) -> Row:
    line = entry_line(index)
    return Row(
        rel=index.rel,
        topic=index.rel.rpartition("/")[0],
        key=hashlib.sha256(index.rel.encode()).hexdigest(),
        sort=fold(index.rel),
        digest=digest or "",
        name=index.name,
        description=index.description,
        type=type_,
        keywords=json.dumps(keywords),
        trust=assessed.trust,
        expires=assessed.expires,
        readable=int(index.readable),
        held=assessed.held,
        note=note,
        line=line,
        line_bytes=len(line.encode()),
    )
