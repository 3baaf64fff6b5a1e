"""Export: the entries of a memory as one file, the same bytes for the same entries.

    tar     `muniment-export.json` first: format, and the trust of each entry; then the entries unchanged,
            in the order of their paths, without times and owners (ustar, or pax if a name needs it)
    jsonl   a line with the format; then one entry per line: `path`, `text`, `trust`

Generated files (`MEMORY.md`, `index/`) are omitted: an import generates them again. Files that cannot be read
are omitted too, and in `jsonl` files that are not text. `collect` reports them before anything is written.
The ledger is not exported: history and undo are only part of a backup.
"""

from __future__ import annotations

import io
import json
import math
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from os import PathLike
from typing import IO, TYPE_CHECKING, Final, Literal

from muniment.cancelling import Cancel
from muniment.content.admission import check_entry
from muniment.content.entry import PROVENANCE_KEY, completed, parse
from muniment.content.gates import decode, encode
from muniment.errors import (
    ConfigInvalid,
    NotFound,
    PathEscape,
    QuotaExceeded,
    Refusal,
    TooLarge,
    ToolError,
)
from muniment.files import new_file
from muniment.kernel.cancel import Patience
from muniment.kernel.change import FileChange
from muniment.kernel.decide import Judge, Policy
from muniment.kernel.names import INDEX_DIRECTORY, INDEX_NAME, RelPath, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath, fold
from muniment.operations.place import Place
from muniment.operations.visibility import Reader, Visibility
from muniment.policy.grammar import check_creatable
from muniment.policy.tables import grant_readable
from muniment.store.index import is_generated
from muniment.store.trust import reasons_for_review, trust_at
from muniment.store.upkeep import view_of
from muniment.types import ExportResult

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

ExportFormat = Literal["tar", "jsonl"]

EXPORT_NAME: Final = "muniment-export.json"
EXPORT_FORMAT: Final = "muniment-export/1"
"""The first member of an exported tar, and the format that it contains."""

_PRIVATE: Final = 0o600

_TOLD_CHARS: Final = 200
"""Characters of a value in the provenance of an exported entry; longer values are dropped."""


@dataclass(frozen=True, slots=True)
class OutgoingEntry:
    """An entry to export."""

    path: str
    data: bytes
    trust: Trust


@dataclass(frozen=True, slots=True)
class Outgoing:
    """The content of an export.

    Attributes:
        entries: in the order of their paths.
        notes: entries that the export omits or that an import would change, with the reason; only a backup
            contains them.
    """

    entries: tuple[OutgoingEntry, ...]
    notes: tuple[str, ...]


def export(
    place: Place,
    file: str | PathLike[str] | IO[bytes],
    *,
    scope: str | None = None,
    format: str = "tar",  # noqa: A002  as in the command
) -> ExportResult:
    """Write every entry, with its origin, to one file that an import reads.

    Args:
        place: the memory; the caller closes it.
        file: the path of a new file, readable only by this user, or an open binary file.
        scope: the only scope to export; None: all.
        format: `tar` or `jsonl`.

    Raises:
        ConfigInvalid: unknown format, or the file exists or cannot be written.
        InvalidScope: unknown scope.
        ManagedMemoryUnavailable, PathEscape: a root or the state cannot be used.
    """
    kind = as_format(format)
    outgoing = collect(place, kind, scope=scope)
    with new_file(file) if isinstance(file, str | PathLike) else nullcontext(file) as target:
        write(outgoing, target, kind)
    return ExportResult(entries=len(outgoing.entries), notes=outgoing.notes)


def as_format(name: str) -> ExportFormat:
    """Return the format of a name.

    Raises:
        ConfigInvalid: unknown format.
    """
    match name:
        case "tar" | "jsonl":
            return name
        case _:
            raise ConfigInvalid(f"unknown format {name!r}; use tar or jsonl")


def collect_visible(
    place: Place,
    reader: Reader,
    kind: ExportFormat,
    *,
    scope: str | None = None,
    max_bytes: int,
    cancel: Cancel | None = None,
) -> Outgoing:
    """Read the entries that a reader may see; below the owner's trust, only those that a recall may return.

    A reader below the owner's trust gets no notes, since they list other entries.

    Args:
        place: the memory; the caller closes it.
        reader: the reader who gets the export.
        kind: as `collect`.
        scope: the only scope; None: all.
        max_bytes: the maximum number of bytes in the file.
        cancel: cancels the call at the next entry.

    Raises:
        TooLarge: the entries need more bytes; reading stops there.
        InvalidScope, ManagedMemoryUnavailable, PathEscape: as `collect`.
    """
    visibility, size = Visibility(place, reader, cancel), 0

    def admit(entry: OutgoingEntry) -> None:
        nonlocal size
        patience.check()
        size += _written_bytes(entry, kind)
        if size > max_bytes:
            raise too_large(max_bytes)

    patience = Patience(math.inf, cancel)
    if reader.is_owner:
        outgoing = collect(place, kind, scope=scope, admit=admit, shows=visibility.shows)
    else:
        holdings = (
            visibility.entry(CanonicalPath(name, row.rel))
            for name in place.chosen(scope)
            for row in visibility.view(name).entries()
        )
        found: list[OutgoingEntry] = []
        for each in filter(None, holdings):
            found.append(OutgoingEntry(each.path.text, each.data, each.trust))
            admit(found[-1])
        outgoing = Outgoing(tuple(sorted(found, key=lambda each: each.path)), ())
    return outgoing


def too_large(max_bytes: int) -> TooLarge:
    """Return the error of an export with more than `max_bytes`."""
    return TooLarge(f"the export has more than {max_bytes} bytes")


def _written_bytes(entry: OutgoingEntry, kind: ExportFormat) -> int:
    """Return the minimum number of bytes that an entry needs in an export."""
    return len(_line(entry, "replace")) if kind == "jsonl" else tarfile.BLOCKSIZE + len(entry.data)


class BoundedFile(io.BytesIO):
    """A file in memory with a maximum size; it raises `TooLarge` if a write exceeds it.

    Args:
        max_bytes: the maximum size.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max = max_bytes

    def write(self, data: Buffer, /) -> int:
        """Write, see `io.BytesIO`."""
        if self.tell() + len(memoryview(data)) > self._max:
            raise too_large(self._max)
        return super().write(data)


def collect(
    place: Place,
    kind: ExportFormat,
    *,
    scope: str | None = None,
    observe: Callable[[int], None] = lambda _: None,
    admit: Callable[[OutgoingEntry], None] = lambda _: None,
    shows: Callable[[str], bool] = lambda _: True,
) -> Outgoing:
    """Read the entries of a memory, and find those that an import into an empty home would not restore.

    Args:
        place: the memory; the caller closes it.
        kind: the format.
        scope: the only scope; None: all.
        observe: called with the number of entries that were read since the last call.
        admit: called with each entry, before the next one is read; an exception from it ends the export.
        shows: returns whether an entry, or a note about a path, may be given to the caller.

    Raises:
        InvalidScope: unknown scope.
        ManagedMemoryUnavailable, PathEscape: a root or the state cannot be used.
    """
    notes: list[str] = []
    found = []
    for entry in _entries(place, scope, notes, shows):
        admit(entry)
        found.append(entry)
        observe(1)
    found.sort(key=lambda each: each.path)
    if kind == "jsonl":
        texts = [each for each in found if _is_text(each.data)]
        left = {each.path for each in found} - {each.path for each in texts}
        notes += (f"skipped: {path} (it is not UTF-8 text; export to FILE.tar)" for path in sorted(left))
        found = texts
    return Outgoing(tuple(found), (*notes, *_only_in_backup(place, found)))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _only_in_backup(place: Place, entries: list[OutgoingEntry]) -> Iterator[str]:
    """Return notes about entries that an import with the same policy would reject, withhold or change."""
    policy = grant_readable(place.policy)
    judge = Judge(policy)
    used: Counter[tuple[str, str, str]] = Counter()
    names: dict[str, str] = {}
    for each in entries:
        path = CanonicalPath(*_split(each.path))
        problem = _import_problem(each, path, judge, policy)
        other = names.setdefault(fold(each.path), each.path)
        if other != each.path:
            problem = problem or f"its name differs from {other} only in upper and lower case"
        for quota in judge.quotas_for(path):
            for number, most, more in (
                ("files", quota.max_files, 1),
                ("bytes", quota.max_total_bytes, len(each.data)),
            ):
                used[path.scope, quota.id, number] += more
                if used[path.scope, quota.id, number] > most:
                    problem = problem or f"the quota {quota.id!r} allows {most} {number} in this folder"
        if problem:
            advice = "to preserve it unchanged: muniment backup FILE"
            yield f"an import would change or reject {each.path}: {problem}; {advice}"


def _split(path: str) -> tuple[Scope, RelPath]:
    scope, _, rel = path.partition("/")
    return Scope(scope), RelPath(rel)


def _import_problem(entry: OutgoingEntry, path: CanonicalPath, judge: Judge, policy: Policy) -> str:
    try:
        if as_exported(entry.data, entry.trust) != entry.data:
            return "it claims more trust than it has; the claim is changed"
        return "; ".join(judge_entry(path, entry.data, entry.trust, judge, policy))
    except (PathEscape, Refusal, ToolError) as problem:
        return str(problem)


def write(outgoing: Outgoing, file: IO[bytes], kind: ExportFormat) -> None:
    """Write collected entries to an empty file that is open for writing.

    Raises:
        OSError: the file cannot be written.
    """
    if kind == "tar":
        _write_tar(outgoing.entries, file)
    else:
        _write_lines(outgoing.entries, file)


def _entries(
    place: Place, scope: str | None, notes: list[str], shows: Callable[[str], bool]
) -> Iterator[OutgoingEntry]:
    judge = Judge(place.policy)
    for name in place.chosen(scope):
        key, view = place.key(name), view_of(place.state, place.roots[name], place.policy, sweep=True)
        notes += (
            f"skipped: {name}/{odd.path} ({odd.reason}); only `muniment backup` includes it"
            for odd in view.odd()
            if shows(f"{name}/{odd.path}")
        )
        notes += _under_index_names(place, name, shows)
        for row in view.entries():
            path = CanonicalPath(name, row.rel)
            if not shows(path.text):
                continue
            try:
                judge.require(Verb.READ, path)
                data = place.read(path)
            except (PathEscape, Refusal, ToolError) as problem:
                notes.append(f"skipped: {path.text} ({problem}); only `muniment backup` includes it")
                continue
            yield OutgoingEntry(path.text, data, trust_at(place.state, key, path, data, place.policy))


def _under_index_names(place: Place, scope: Scope, shows: Callable[[str], bool]) -> Iterator[str]:
    """Return notes about files that a person wrote at the paths of the indexes."""
    pages: list[str] = []
    with suppress(NotFound, ToolError):
        listed = place.roots[scope].root.list_directory(CanonicalPath(scope, RelPath(INDEX_DIRECTORY)))
        pages = [each.name for each in listed]
    for rel in (INDEX_NAME, *(f"{INDEX_DIRECTORY}/{page}" for page in pages)):
        try:
            is_ours = is_generated(place.read(CanonicalPath(scope, RelPath(rel))), rel)
        except NotFound:
            continue
        except (PathEscape, Refusal, ToolError):
            is_ours = False
        if not is_ours and shows(f"{scope}/{rel}"):
            yield f"skipped: {scope}/{rel} (the name of an index); only `muniment backup` includes it"


def _write_tar(entries: Sequence[OutgoingEntry], file: IO[bytes]) -> None:
    told = {"format": EXPORT_FORMAT, "entries": {each.path: each.trust for each in entries}}
    files = [(EXPORT_NAME, f"{json.dumps(told, indent=1, sort_keys=True)}\n".encode())]
    files += [(each.path, each.data) for each in entries]
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in files:
            member = tarfile.TarInfo(name)  # With time 0 and without an owner.
            member.mode, member.size = _PRIVATE, len(data)
            archive.addfile(member, io.BytesIO(data))


def _write_lines(entries: Sequence[OutgoingEntry], file: IO[bytes]) -> None:
    file.write(f"{json.dumps({'format': EXPORT_FORMAT})}\n".encode())
    for each in entries:
        file.write(_line(each))


def _line(entry: OutgoingEntry, errors: str = "strict") -> bytes:
    row = {"path": entry.path, "text": entry.data.decode(errors=errors), "trust": entry.trust}
    return f"{json.dumps(row, ensure_ascii=False, sort_keys=True)}\n".encode()


def judge_entry(
    path: CanonicalPath, data: bytes, trust: Trust, judge: Judge, policy: Policy
) -> tuple[str, ...]:
    """Check the final bytes of a new entry, and return the reasons for a review by its owner.

    Raises:
        Refusal, ToolError, PathEscape: the policy or a gate denies its creation.
    """
    judge.require(Verb.CREATE, path)
    check_creatable(path)
    most = min(quota.max_file_bytes for quota in judge.quotas_for(path))
    if len(data) > most:
        raise QuotaExceeded(f"the entry has {len(data)} bytes; a file may have {most} in this folder")
    check_entry(data, path.rel, policy.content)
    draft = FileChange(path, None, data, trust=trust)
    return tuple(reasons_for_review(draft, None, trust, policy, is_new_text=True))


def as_exported(data: bytes, trust: Trust) -> bytes:
    """Return the bytes of an exported entry, changed if they claim more trust than the entry gets.

    Raises:
        ToolError: it is not an entry, or hides its claims.
    """
    entry = parse(decode(data))
    fields = entry.front.fields if entry.front is not None else ()
    claims = [field for field in fields if field.key == PROVENANCE_KEY]
    told = dict(entry.muniment or {})
    kept = {key: value for key, value in told.items() if isinstance(value, str) and len(value) <= _TOLD_CHARS}
    claimed = told.get("trust")
    is_lower = isinstance(claimed, str) and claimed in set(Trust) and trust.satisfies(Trust(claimed))
    again = encode(completed(entry, {}, {**kept, "trust": str(trust)}))
    return data if not claims or (len(claims) == 1 and kept == told and is_lower) else again
