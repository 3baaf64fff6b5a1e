"""Export: the entries of a place as one file, the same bytes for the same entries.

    tar     `muniment-export.json` first: format, and the trust of each entry; then the entries as they are,
            in the order of their paths, without times and owners (ustar, pax where a name needs it)
    jsonl   a line that tells the format; then an entry a line: `path`, `text`, `trust`

What is generated (`MEMORY.md`, `index/`) is left out: whoever imports it makes it again. So is what cannot be
read, or in `jsonl` is no text; notes tell. The ledger is not exported: history and undo are a backup's.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Final, Literal

from muniment.content.formats import EXPORT_FORMAT, EXPORT_NAME
from muniment.errors import PathEscape, Refusal, ToolError
from muniment.jobs.place import Place
from muniment.kernel.decide import Judge
from muniment.kernel.names import Trust, Verb
from muniment.kernel.path import CanonicalPath
from muniment.store.trust import trust_at
from muniment.store.upkeep import view_of

ExportFormat = Literal["tar", "jsonl"]

_PRIVATE: Final = 0o600


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written.

    Attributes:
        entries: how many.
        notes: what was passed over, and why.
    """

    entries: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _OutgoingEntry:
    path: str
    data: bytes
    trust: Trust


def export(
    place: Place,
    file: IO[bytes],
    kind: ExportFormat,
    *,
    scope: str | None = None,
    observe: Callable[[int], None] = lambda _: None,
) -> Exported:
    """Write the entries of a place to a file.

    Args:
        place: whose; it stays the caller's.
        file: empty, and open to write.
        kind: as what.
        scope: the one scope; None: all.
        observe: told how many more entries were read.

    Raises:
        InvalidScope: there is no such scope.
        ManagedMemoryUnavailable, PathEscape: a root or the state cannot be used.
        OSError: the file cannot be written.
    """
    notes: list[str] = []
    found = sorted(_entries(place, scope, notes, observe), key=lambda each: each.path)
    if kind == "tar":
        _write_tar(found, file)
    else:
        found = list(_write_lines(found, file, notes))
    return Exported(len(found), tuple(notes))


def _entries(
    place: Place, scope: str | None, notes: list[str], observe: Callable[[int], None]
) -> Iterator[_OutgoingEntry]:
    judge = Judge(place.policy)
    for name in place.chosen(scope):
        key, view = place.key(name), view_of(place.state, place.roots[name], place.policy, sweep=True)
        notes += (f"passed over: {name}/{odd.path} ({odd.reason})" for odd in view.odd())
        for row in view.entries():
            path = CanonicalPath(name, row.rel)
            try:
                judge.require(Verb.READ, path)
                data = place.read(path)
            except (PathEscape, Refusal, ToolError) as problem:
                notes.append(f"passed over: {path.text} ({problem})")
                continue
            yield _OutgoingEntry(path.text, data, trust_at(place.state, key, path, data, place.policy))
            observe(1)


def _write_tar(entries: list[_OutgoingEntry], file: IO[bytes]) -> None:
    told = {"format": EXPORT_FORMAT, "entries": {each.path: each.trust for each in entries}}
    files = [(EXPORT_NAME, f"{json.dumps(told, indent=1, sort_keys=True)}\n".encode())]
    files += [(each.path, each.data) for each in entries]
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in files:
            member = tarfile.TarInfo(name)  # Of time 0, and of nobody.
            member.mode, member.size = _PRIVATE, len(data)
            archive.addfile(member, io.BytesIO(data))


def _write_lines(
    entries: list[_OutgoingEntry], file: IO[bytes], notes: list[str]
) -> Iterator[_OutgoingEntry]:
    file.write(f"{json.dumps({'format': EXPORT_FORMAT})}\n".encode())
    for each in entries:
        try:
            row = {"path": each.path, "text": each.data.decode(), "trust": each.trust}
        except UnicodeDecodeError:
            notes.append(f"passed over: {each.path} (it is no text; export a tar)")
            continue
        file.write(f"{json.dumps(row, ensure_ascii=False, sort_keys=True)}\n".encode())
        yield each
