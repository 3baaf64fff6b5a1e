"""Export the entries of a memory to one file; the same entries always give the same bytes.

    tar     first `muniment-export.json` with the format and the trust of each entry; then the entries
            unchanged, in the order of their paths, without times and owners (ustar, or pax if a name needs
            it)
    jsonl   first a line with the format; then one line for each entry: `path`, `text`, `trust`

Generated files (`MEMORY.md`, `index/`) are omitted: an import generates them again. Files that cannot be read
are omitted, and in `jsonl` also files that are not UTF-8 text. `collect` reports them before anything is
written. The ledger is not exported: only a backup contains history and undo.
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
from muniment.content.entry import PROVENANCE_KEY, complete_front_matter, parse
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
from muniment.events import Progress, track_progress
from muniment.files import create_file
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import FileChange
from muniment.kernel.decide import Policy, PolicyEvaluator
from muniment.kernel.names import INDEX_DIRECTORY, INDEX_NAME, RelPath, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath, fold
from muniment.operations.job_context import JobContext
from muniment.operations.visibility import Reader, Visibility
from muniment.policy.combine import grant_readable
from muniment.policy.grammar import check_creatable
from muniment.store.index import is_generated
from muniment.store.trust import compute_trust, find_review_reasons
from muniment.store.upkeep import open_view
from muniment.types import ExportResult

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

ExportFormat = Literal["tar", "jsonl"]

EXPORT_NAME: Final = "muniment-export.json"
EXPORT_FORMAT: Final = "muniment-export/1"
"""The name of the first member of an exported tar, and the format of all exports."""

_PRIVATE: Final = 0o600

_MAX_PROVENANCE_CHARS: Final = 200
"""Maximum length of a value in the provenance of an exported entry; longer values are dropped."""


@dataclass(frozen=True, slots=True)
class OutgoingEntry:
    """An entry to export: its path with the scope, the bytes of its file, and its trust."""

    path: str
    data: bytes
    trust: Trust


@dataclass(frozen=True, slots=True)
class Outgoing:
    """The content of an export.

    Attributes:
        entries: the entries, in the order of their paths.
        notes: messages about files that the export omits and entries that an import would change, with the
            reason; only a backup preserves these unchanged.
    """

    entries: tuple[OutgoingEntry, ...]
    notes: tuple[str, ...]


def export(
    context: JobContext,
    file: str | PathLike[str] | IO[bytes],
    *,
    scope: str | None = None,
    format: str = "tar",  # noqa: A002  as in the command
) -> ExportResult:
    """Write all entries with their trust to one file, which an import can read.

    Args:
        context: the memory; the caller closes it.
        file: the path of a new file, readable only by this user, or an open binary file.
        scope: the only scope to export; None: all.
        format: `tar` or `jsonl`.

    Raises:
        ConfigInvalid: the format is unknown, or the file exists or cannot be written.
        InvalidScope: the scope is unknown.
        ManagedMemoryUnavailable, PathEscape: a root or the state cannot be used.
    """
    kind = parse_format(format)
    outgoing = collect(context, kind, scope=scope)
    with create_file(file) if isinstance(file, str | PathLike) else nullcontext(file) as target:
        write(outgoing, target, kind)
    return ExportResult(entries=len(outgoing.entries), notes=outgoing.notes)


def parse_format(name: str) -> ExportFormat:
    """Check the name of an export format, and return it.

    Raises:
        ConfigInvalid: the format is unknown.
    """
    match name:
        case "tar" | "jsonl":
            return name
        case _:
            raise ConfigInvalid(f"unknown format {name!r}; use tar or jsonl")


def collect_visible(
    context: JobContext,
    reader: Reader,
    kind: ExportFormat,
    *,
    scope: str | None = None,
    max_bytes: int,
    cancel: Cancel | None = None,
) -> Outgoing:
    """Return the entries that a reader may export.

    A reader below the owner's trust gets only entries that a recall may return, and no notes, since notes
    list other entries.

    Args:
        context: the memory; the caller closes it.
        reader: the reader who gets the export.
        kind: the format of the export.
        scope: the only scope; None: all.
        max_bytes: the maximum size of the export in bytes.
        cancel: cancels the call at the next entry.

    Raises:
        TooLarge: the entries need more than `max_bytes`; reading stops there.
        InvalidScope, ManagedMemoryUnavailable, PathEscape: as `collect`.
    """
    visibility, size = Visibility(context, reader, cancel), 0

    def count_bytes(entry: OutgoingEntry) -> None:
        nonlocal size
        deadline.check()
        size += _estimate_bytes(entry, kind)
        if size > max_bytes:
            raise create_size_error(max_bytes)

    deadline = Deadline(math.inf, cancel)
    if reader.is_owner:
        outgoing = collect(
            context, kind, scope=scope, check_entry=count_bytes, is_path_visible=visibility.is_path_visible
        )
    else:
        loaded_entries = (
            visibility.load_entry(CanonicalPath(name, row.rel))
            for name in context.select_scopes(scope)
            for row in visibility.load_view(name).entries()
        )
        found: list[OutgoingEntry] = []
        for each in filter(None, loaded_entries):
            found.append(OutgoingEntry(each.path.text, each.data, each.trust))
            count_bytes(found[-1])
        outgoing = Outgoing(tuple(sorted(found, key=lambda each: each.path)), ())
    return outgoing


def create_size_error(max_bytes: int) -> TooLarge:
    """Return the error of an export that needs more than `max_bytes`."""
    return TooLarge(f"the export has more than {max_bytes} bytes")


def _estimate_bytes(entry: OutgoingEntry, kind: ExportFormat) -> int:
    """Return the minimum number of bytes that an entry adds to an export."""
    return len(_format_line(entry, "replace")) if kind == "jsonl" else tarfile.BLOCKSIZE + len(entry.data)


class BoundedFile(io.BytesIO):
    """An in-memory file with a maximum size; a write that exceeds it raises `TooLarge`.

    Args:
        max_bytes: the maximum size.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max = max_bytes

    def write(self, data: Buffer, /) -> int:
        """Write `data` to the file, or raise `TooLarge` if the file would exceed its maximum size."""
        if self.tell() + len(memoryview(data)) > self._max:
            raise create_size_error(self._max)
        return super().write(data)


def collect(
    context: JobContext,
    kind: ExportFormat,
    *,
    scope: str | None = None,
    check_entry: Callable[[OutgoingEntry], None] = lambda _: None,
    is_path_visible: Callable[[str], bool] = lambda _: True,
) -> Outgoing:
    """Return all entries of a memory, with notes about those that an import would not restore.

    Args:
        context: the memory; the caller closes it.
        kind: the format of the export.
        scope: the only scope; None: all.
        check_entry: called with each entry before the next one is read; if it raises, the export ends.
        is_path_visible: returns whether the caller may get the entry at a path, or a note about this path.

    Raises:
        InvalidScope: the scope is unknown.
        ManagedMemoryUnavailable, PathEscape: a root or the state cannot be used.
    """
    notes: list[str] = []
    found = []
    with track_progress("exporting", unit="entries") as progress:
        for entry in _iterate_entries(context, scope, notes, is_path_visible, progress):
            check_entry(entry)
            found.append(entry)
    found.sort(key=lambda each: each.path)
    if kind == "jsonl":
        texts = [each for each in found if _is_text(each.data)]
        left = {each.path for each in found} - {each.path for each in texts}
        notes += (f"skipped: {path} (it is not UTF-8 text; export to FILE.tar)" for path in sorted(left))
        found = texts
    with track_progress("checking the export", unit="entries", total=len(found)) as progress:
        problems = list(_find_import_problems(context, found, progress))
    return Outgoing(tuple(found), (*notes, *problems))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _find_import_problems(
    context: JobContext, entries: list[OutgoingEntry], progress: Progress
) -> Iterator[str]:
    """Yield notes about entries that an import with the same policy would reject, withhold or change."""
    policy = grant_readable(context.policy)
    judge = PolicyEvaluator(policy)
    used: Counter[tuple[str, str, str]] = Counter()
    names: dict[str, str] = {}
    for each in entries:
        progress.done += 1
        path = CanonicalPath(*_split_path(each.path))
        problem = _find_import_problem(each, path, judge, policy)
        other = names.setdefault(fold(each.path), each.path)
        if other != each.path:
            problem = problem or f"its name differs from {other} only in upper and lower case"
        for quota in judge.quotas_for(path):
            for number, limit, amount in (
                ("files", quota.max_files, 1),
                ("bytes", quota.max_total_bytes, len(each.data)),
            ):
                used[path.scope, quota.id, number] += amount
                if used[path.scope, quota.id, number] > limit:
                    problem = problem or f"the quota {quota.id!r} allows {limit} {number} in this folder"
        if problem:
            advice = "to preserve it unchanged: muniment backup FILE"
            yield f"an import would change or reject {each.path}: {problem}; {advice}"


def _split_path(path: str) -> tuple[Scope, RelPath]:
    scope, _, rel = path.partition("/")
    return Scope(scope), RelPath(rel)


def _find_import_problem(
    entry: OutgoingEntry, path: CanonicalPath, judge: PolicyEvaluator, policy: Policy
) -> str:
    try:
        if lower_trust_claim(entry.data, entry.trust) != entry.data:
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


def _iterate_entries(
    context: JobContext,
    scope: str | None,
    notes: list[str],
    is_path_visible: Callable[[str], bool],
    progress: Progress,
) -> Iterator[OutgoingEntry]:
    judge = PolicyEvaluator(context.policy)
    for name in context.select_scopes(scope):
        key, view = (
            context.read_root_key(name),
            open_view(context.state, context.roots[name], context.policy, sweep=True),
        )
        notes += (
            f"skipped: {name}/{skipped_file.path} ({skipped_file.reason}); only `muniment backup` includes it"
            for skipped_file in view.list_odd_names()
            if is_path_visible(f"{name}/{skipped_file.path}")
        )
        notes += _find_foreign_indexes(context, name, is_path_visible)
        rows = view.entries()
        progress.total = len(rows) + (progress.total or 0)
        for row in rows:
            progress.done += 1
            path = CanonicalPath(name, row.rel)
            if not is_path_visible(path.text):
                continue
            try:
                judge.require(Verb.READ, path)
                data = context.read_file(path)
            except (PathEscape, Refusal, ToolError) as problem:
                notes.append(f"skipped: {path.text} ({problem}); only `muniment backup` includes it")
                continue
            yield OutgoingEntry(
                path.text, data, compute_trust(context.state, key, path, data, context.policy)
            )


def _find_foreign_indexes(
    context: JobContext, scope: Scope, is_path_visible: Callable[[str], bool]
) -> Iterator[str]:
    """Yield notes about files that have the path of an index but were not generated by this program."""
    pages: list[str] = []
    with suppress(NotFound, ToolError):
        listed = context.roots[scope].root.list_directory(CanonicalPath(scope, RelPath(INDEX_DIRECTORY)))
        pages = [each.name for each in listed]
    for rel in (INDEX_NAME, *(f"{INDEX_DIRECTORY}/{page}" for page in pages)):
        try:
            is_index = is_generated(context.read_file(CanonicalPath(scope, RelPath(rel))), rel)
        except NotFound:
            continue
        except (PathEscape, Refusal, ToolError):
            is_index = False
        if not is_index and is_path_visible(f"{scope}/{rel}"):
            yield f"skipped: {scope}/{rel} (reserved for an index); only `muniment backup` includes it"


def _write_tar(entries: Sequence[OutgoingEntry], file: IO[bytes]) -> None:
    manifest = {"format": EXPORT_FORMAT, "entries": {each.path: each.trust for each in entries}}
    files = [(EXPORT_NAME, f"{json.dumps(manifest, indent=1, sort_keys=True)}\n".encode())]
    files += [(each.path, each.data) for each in entries]
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in files:
            member = tarfile.TarInfo(name)  # With time 0 and without an owner.
            member.mode, member.size = _PRIVATE, len(data)
            archive.addfile(member, io.BytesIO(data))


def _write_lines(entries: Sequence[OutgoingEntry], file: IO[bytes]) -> None:
    file.write(f"{json.dumps({'format': EXPORT_FORMAT})}\n".encode())
    for each in entries:
        file.write(_format_line(each))


def _format_line(entry: OutgoingEntry, errors: str = "strict") -> bytes:
    row = {"path": entry.path, "text": entry.data.decode(errors=errors), "trust": entry.trust}
    return f"{json.dumps(row, ensure_ascii=False, sort_keys=True)}\n".encode()


def judge_entry(
    path: CanonicalPath, data: bytes, trust: Trust, judge: PolicyEvaluator, policy: Policy
) -> tuple[str, ...]:
    """Check the final bytes of a new entry, and return the reasons why its owner must review it.

    Raises:
        Refusal, ToolError, PathEscape: the policy, a quota or a gate denies the entry.
    """
    judge.require(Verb.CREATE, path)
    check_creatable(path)
    max_bytes = min(quota.max_file_bytes for quota in judge.quotas_for(path))
    if len(data) > max_bytes:
        raise QuotaExceeded(f"the entry has {len(data)} bytes; a file may have {max_bytes} in this folder")
    check_entry(data, path.rel, policy.content)
    draft = FileChange(path, None, data, trust=trust)
    return tuple(find_review_reasons(draft, None, trust, policy, is_new_text=True))


def lower_trust_claim(data: bytes, trust: Trust) -> bytes:
    """Return the bytes of an exported entry; a claim of more trust than `trust` is lowered to it.

    Raises:
        ToolError: the bytes are not a valid entry, or hide a claim of trust.
    """
    entry = parse(decode(data))
    fields = entry.front.fields if entry.front is not None else ()
    claims = [field for field in fields if field.key == PROVENANCE_KEY]
    provenance = dict(entry.muniment or {})
    valid_provenance = {
        key: value
        for key, value in provenance.items()
        if isinstance(value, str) and len(value) <= _MAX_PROVENANCE_CHARS
    }
    claimed = provenance.get("trust")
    is_lower = isinstance(claimed, str) and claimed in set(Trust) and trust.satisfies(Trust(claimed))
    rewritten = encode(complete_front_matter(entry, {}, {**valid_provenance, "trust": str(trust)}))
    return (
        data
        if not claims or (len(claims) == 1 and valid_provenance == provenance and is_lower)
        else rewritten
    )
