"""Parts of entries that a forget may remove: describe them, find chosen ones again, and build their removal.

Separate from `forget.py`, which searches for the parts and commits their removal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from muniment.content.admission import find_withholding_gate
from muniment.content.entry import Entry, read_titles
from muniment.content.markdown import Item, build_outline, remove_item
from muniment.kernel.change import ChangeSet, FileChange
from muniment.operations.job_context import LoadedEntry
from muniment.operations.removals import describe_for_person, describe_part_removals, describe_removal
from muniment.types import EntryPart, RemovedEntry, RetainedEntry

_NOT_SEPARABLE: Final = "removing this part would change the rest of the file; edit it by hand"
_WOULD_BE_WITHHELD: Final = "the rest of the file would be withheld; edit it by hand"


@dataclass(frozen=True, slots=True)
class MatchedPart:
    """A match of the query: an entry, or a part of one.

    Attributes:
        loaded: the entry.
        item: the part that matches; None: the whole entry.
        removed: the match as a result reports its removal.
    """

    loaded: LoadedEntry
    item: Item | None
    removed: RemovedEntry

    @property
    def model_text(self) -> str:
        """Return the text that a model sees of this match: the name of the entry and the matching text."""
        entry = self.loaded.entry
        name = read_titles(entry, self.loaded.path.rel).name
        return f"{name}\n{self.body}"

    @property
    def body(self) -> str:
        """Return the text of the matching part, or of the whole entry."""
        return self.loaded.entry.body if self.item is None else self.item.text

    @property
    def shown(self) -> EntryPart:
        """Return this match as a preview shows it to a person."""
        return describe_for_person(self.loaded, self.item)


def match_whole_entry(loaded: LoadedEntry) -> MatchedPart:
    """Return the match of a whole entry."""
    path, entry, row = loaded.path, loaded.entry, loaded.row
    name = read_titles(entry, path.rel).name if row.held is None else row.name
    return MatchedPart(loaded, None, describe_removal(path, entry, name))


def match_parts(loaded: LoadedEntry, entry: Entry, parts: Sequence[Item]) -> Iterator[MatchedPart]:
    """Yield the matches of some parts of an entry."""
    removed_parts = describe_part_removals(loaded.path, entry, parts)
    yield from (
        MatchedPart(loaded, part, removed) for part, removed in zip(parts, removed_parts, strict=True)
    )


def match_chosen(loaded: LoadedEntry, chosen: Iterable[EntryPart]) -> list[MatchedPart] | None:
    """Return the chosen parts of one entry, in order; None if the entry does not have them (any more).

    Args:
        loaded: the entry as it is now.
        chosen: the parts, as a preview returned them.
    """
    spans = {each.span for each in chosen if each.digest == loaded.digest}
    if not spans or any(each.digest != loaded.digest for each in chosen):
        return None
    if None in spans:
        return [match_whole_entry(loaded)] if len(spans) == 1 else None
    entry = loaded.entry
    items = {(item.start, item.end): item for item in _iterate_parts(build_outline(entry.body).parts)}
    ordered = [items.get(span) for span in sorted(filter(None, spans))]
    found = [item for item in ordered if item is not None]
    is_apart = all(one.end <= other.start for one, other in pairwise(found))
    if len(found) < len(ordered) or not is_apart or find_part_obstacle(loaded, found) is not None:
        return None
    return list(match_parts(loaded, entry, found))


def _iterate_parts(parts: Iterable[Item]) -> Iterator[Item]:
    for part in parts:
        yield part
        yield from _iterate_parts(part.items)


def find_part_obstacle(loaded: LoadedEntry, items: Sequence[Item]) -> str | None:
    """Return why these parts of a file cannot be removed, or None if they can.

    Args:
        loaded: the entry.
        items: the matching parts; empty if only several parts together contain all words of the query.
    """
    if not items:
        return "only several items together contain these words; use the words of one item"
    if loaded.row.held is not None:
        # With a commit its remaining text would count as judged.
        return "only a part of it matches, and its text is withheld; edit it by hand"
    if not loaded.data.endswith(loaded.entry.body.encode()):
        return "only a part of it matches, and it is not UTF-8 text; edit it by hand"
    return None


def build_change_set(
    matches: Iterable[MatchedPart], retained: list[RetainedEntry]
) -> tuple[ChangeSet, list[MatchedPart]]:
    """Return the changes that remove the matches, and the matches that are removed; retain the others."""
    matches_by_path: dict[str, list[MatchedPart]] = {}
    for match in matches:
        matches_by_path.setdefault(match.removed.path, []).append(match)
    changes: list[FileChange] = []
    removed: list[MatchedPart] = []
    for file_matches in matches_by_path.values():
        loaded = file_matches[0].loaded
        content, cut = _cut_items(file_matches, retained)
        removed += cut
        if content is None or cut:
            changes.append(FileChange(loaded.path, loaded.digest, content))
    return ChangeSet(tuple(changes)), removed


def _cut_items(
    matches: Sequence[MatchedPart], retained: list[RetainedEntry]
) -> tuple[bytes | None, list[MatchedPart]]:
    """Return the content of a file without the matched items, and the matches that this removes.

    Args:
        matches: all matches in the file.
        retained: receives the matches that cannot be removed.

    Returns:
        The content is None if the file is to be deleted.
    """
    data, body = matches[0].loaded.data, matches[0].loaded.entry.body
    before = data[: len(data) - len(body.encode())]
    removed: list[MatchedPart] = []
    # Start with the last one, so that the positions of the others stay valid.
    for match in reversed(matches):
        if match.item is None:
            return None, [match]
        shorter = remove_item(body, match.item)
        if shorter is None:
            retained.append(RetainedEntry(match.removed.path, _NOT_SEPARABLE))
            continue
        body = shorter
        removed.insert(0, match)
    if build_outline(body).is_empty:
        return None, removed
    left = before + body.encode()
    if removed and not _passes_gates(matches[0].loaded, left):
        retained += [RetainedEntry(match.removed.path, _WOULD_BE_WITHHELD) for match in removed]
        return data, []
    return left, removed


def _passes_gates(loaded: LoadedEntry, remaining: bytes) -> bool:
    """Return whether the rest of a file may be committed; text from another program must pass the gates."""
    return bool(loaded.written_at) or find_withholding_gate(remaining, loaded.path.text, loaded.trust) is None
