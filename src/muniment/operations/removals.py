"""The removals of entries and parts, as the results of forget and dream list them.

For a commit from the past, the list is derived from its stored bytes and today's policy. If two items of a
list have the same text, it may report the other one. It omits bytes that were erased since.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from muniment.content.admission import find_withholding_gate
from muniment.content.entry import MAX_DESCRIPTION_CHARS, Entry, EntryType, parse, read_titles, shorten
from muniment.content.expiry import is_expired
from muniment.content.gates import clean_line
from muniment.content.markdown import Item, build_outline
from muniment.content.words import extract_features
from muniment.errors import JobError
from muniment.kernel.change import ChangeSet, digest
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath
from muniment.operations.job_context import JobContext, LoadedEntry
from muniment.store.handles import find_renames
from muniment.store.ledger import ChangeRow, CommitRow, find_source
from muniment.types import EntryPart, RemovedEntry

_LINE_BREAK: Final = re.compile("\r\n|\n|\r")

MAX_SHOWN_CHARS: Final = 300
"""Maximum characters of the text of an entry in a preview for a person."""

_MAX_NAME_CHARS: Final = 40


def describe_removal(path: CanonicalPath, entry: Entry, text: str) -> RemovedEntry:
    """Return an entry, or a part of one, in the form in which a result reports its removal.

    Args:
        path: the path of the entry.
        entry: the entry before the removal.
        text: the name of the entry, or the text of the part; only the start is reported.
    """
    start = text[: 10 * MAX_DESCRIPTION_CHARS]
    return RemovedEntry(read_topic(entry), shorten(clean_line(start), MAX_DESCRIPTION_CHARS), path.text)


def describe_part_removals(
    path: CanonicalPath, entry: Entry, parts: Sequence[Item]
) -> Iterator[RemovedEntry]:
    """Yield parts of an entry as a result reports their removal, each with its line number."""
    body_offset = len(entry.text) - len(entry.body)
    line_ends = [found.end() for found in _LINE_BREAK.finditer(entry.text)] if parts else []
    for part in parts:
        lines = entry.body[part.start : part.end].rstrip()
        start = part.start + len(lines) - len(lines.lstrip("\r\n"))
        line = bisect_right(line_ends, body_offset + start) + 1
        yield replace(describe_removal(path, entry, part.own_text), line=line, text=lines.lstrip("\r\n"))


def describe_for_person(loaded: LoadedEntry, item: Item | None = None) -> EntryPart:
    """Return an entry, or a part of one, as a preview shows it to a person.

    Args:
        loaded: the entry.
        item: the part; None: the whole entry. Of a withheld entry only the name is shown.
    """
    entry, row = loaded.entry, loaded.row
    name = clean_line(entry.name or "")
    remark, body = "", clean_line((entry.body if item is None else item.text)[: 10 * MAX_SHOWN_CHARS])
    if row.held is not None:
        text, remark = row.name, "withheld"
    elif item is not None:
        title = clean_line(read_titles(entry, loaded.path.rel).name)
        text, remark = body, f"a part of {shorten(title, _MAX_NAME_CHARS)}"
    else:
        has_name = extract_features(name) <= extract_features(body)
        text = body if has_name and body else f"{name}: {body}" if body else name or row.name
        lines = sum(bool(line.strip()) for line in _LINE_BREAK.split(entry.body))
        if lines > 1:
            remark = f"the whole entry, {lines} lines"
    return EntryPart(
        loaded.path.text,
        shorten(clean_line(text), MAX_SHOWN_CHARS),
        row.at,
        loaded.trust,
        row.handle,
        remark,
        loaded.digest,
        None if item is None else (item.start, item.end),
    )


def read_topic(entry: Entry) -> str:
    """Return the type of an entry, or `reference` (the most common type) if it has none."""
    return entry.type or EntryType.REFERENCE


def list_topics(changes: Iterable[ChangeRow]) -> tuple[str, ...]:
    """Return the sorted topics of the entries that a commit changed, without those with erased bytes."""
    known = (each.change.before or each.change.after for each in changes if not each.is_erased)
    return tuple(sorted({read_topic(parse(data)) for data in known if data is not None}))


def list_forgotten(context: JobContext, done: CommitRow) -> tuple[RemovedEntry, ...]:
    """Return the entries and items that a forget removed; those with erased bytes are omitted."""
    known = {item.change.path: item for item in done.changes if not item.is_erased}
    for path, old in find_renames(item.change for item in known.values()).items():
        renamed = known.pop(path).change
        known[old] = known[old]._replace(change=replace(known[old].change, after=renamed.after))
    return tuple(each for item in known.values() for each in _list_removals(context, item))


def list_expired(context: JobContext, done: CommitRow) -> frozenset[str]:
    """Return the paths that the commit of a dream removed because they had expired.

    Paths whose bytes were erased since are omitted.
    """
    found: set[str] = set()
    for item in done.changes:
        path, before = item.change.path, item.change.before
        if item.change.after is not None or before is None:
            continue
        if is_expired(context.assess(path, before).expires, done.run.at):
            found.add(path.text)
    return frozenset(found)


def _list_removals(context: JobContext, item: ChangeRow) -> Iterator[RemovedEntry]:
    path, before, after = item.change.path, item.change.before or b"", item.change.after
    entry = parse(before)
    if after is None:
        yield describe_removal(path, entry, _read_name(context, item, before))
        return
    yield from describe_part_removals(
        path,
        entry,
        tuple(_find_removed_items(build_outline(entry.body).parts, build_outline(parse(after).body).parts)),
    )


def _read_name(context: JobContext, item: ChangeRow, data: bytes) -> str:
    """Return the name of an entry, or its file name if its text is withheld.

    Args:
        context: the memory.
        item: the change that removed the entry.
        data: the bytes of the entry.
    """
    path = item.change.path
    is_from_ledger = find_source(context.state, item.root, path.rel, digest(data)) is not None
    if (
        not is_from_ledger
        and find_withholding_gate(data, path.text, context.policy.get_trust(path.scope)) is not None
    ):
        return path.name.removesuffix(FILE_SUFFIX)
    return read_titles(parse(data), path.rel).name


def _find_removed_items(items: Sequence[Item], remaining: Sequence[Item]) -> Iterator[Item]:
    """Yield the items that are missing in `remaining`, the items of the same file after a removal.

    The items in `remaining` have the same order as in `items`.
    """
    unmatched = list(remaining)
    for each in items:
        if unmatched and unmatched[0].own_text.strip() == each.own_text.strip():
            yield from _find_removed_items(each.items, unmatched.pop(0).items)
        else:
            yield each


def compute_preview_digest(context: JobContext, kind: str, change_sets: Iterable[ChangeSet]) -> str | None:
    """Return a digest of exactly the changes that a job would make, and of the entries that stay for them.

    Without changes, return None.

    The digest is keyed: a caller can only know it from the preview.
    """
    listed = list(change_sets)
    changes = sorted([each.path.text, each.base, each.digest] for step in listed for each in step.changes)
    claims = sorted([each.path.text, each.digest] for step in listed for each in step.claims)
    return context.state.compute_keyed_digest(f"{kind} {json.dumps([changes, claims])}") if changes else None


def check_preview(requested_digest: str | None, current_digest: str | None, *, is_dry: bool) -> None:
    """Check that the current changes are those of the preview whose digest a request contains.

    Args:
        requested_digest: the digest in the request; None: accept any changes.
        current_digest: the digest of the current changes.
        is_dry: accept any changes, because this is a preview.

    Raises:
        JobError: the changes have another digest now; its code is `preview_changed`.
    """
    if not is_dry and requested_digest not in {None, current_digest}:
        raise create_preview_error("preview with this digest", "request a new preview, and send its digest")


def create_preview_error(preview: str = "preview", advice: str = "request a new preview") -> JobError:
    """Return the error of a request whose entries are no longer those of its preview.

    Args:
        preview: the preview, for the message.
        advice: the action that the caller can take.
    """
    return JobError(
        f"the entries to remove changed since the {preview}; nothing was removed; {advice}",
        code="preview_changed",
    )
