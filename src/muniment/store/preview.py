"""A pending change-set as its owner sees it. Pure.

Canonical: every line of the text stands behind a mark of its own, so that it forges none of ours; whatever
does not show by itself is written as its code point; the last line is the digest that an approval names.

Does not hold: that a text shown so cannot deceive; lookalikes and white space of many widths stay.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from typing import Final

from muniment.content.gates import visible
from muniment.names import Digest
from muniment.store.review import Pending
from muniment.tools.overlay import digest

MAX_DIFF_LINES: Final = 1_000
"""Lines of a file, on either side, up to which it is compared line by line; hostile text takes a second."""


def preview(waiting: Pending, current: Callable[[str], bytes | None], policy: Digest) -> str:
    """A review as the owner decides about it; ends with the digest that an approval names.

    Args:
        waiting: what waits.
        current: the bytes that a logical path holds now; None where no file is.
        policy: digest of the policy in force.
    """
    return "\n".join(_preview(waiting, current, policy)) + "\n"


def _preview(waiting: Pending, current: Callable[[str], bytes | None], policy: Digest) -> Iterator[str]:
    origin, change_set = waiting.origin, waiting.change_set
    yield f"review {waiting.id}: {origin.kind} by {visible(origin.decided_by)}, {waiting.at}"
    yield f"asked by {origin.task}, of trust {origin.trust}"
    yield from (f"waits because {visible(reason)}" for reason in waiting.reasons)
    if policy != waiting.policy:
        yield "the policy has changed since it was asked for"
    for change in change_set.changes:
        yield from _file(change.unsafe_path, change.base, change.content, waiting, current)
    for removal in change_set.removals:
        yield from _file(removal.unsafe_path, removal.digest, None, waiting, current)
    yield ""
    for claim in change_set.claims:
        now = current(claim.unsafe_path)
        holds = claim.digest == (None if now is None else digest(now))
        was = "it was not there" if claim.digest is None else f"as it was, {claim.digest[:16]}"
        yield f"rests on {visible(claim.unsafe_path)}: {was}{'' if holds else ' (changed since)'}"
    yield f"digest {waiting.digest(policy)}"


def _file(
    path: str,
    base: Digest | None,
    after: bytes | None,
    waiting: Pending,
    current: Callable[[str], bytes | None],
) -> Iterator[str]:
    before = current(path)
    trust = waiting.trusts.get(path)
    done = "removed" if after is None else f"{'new' if base is None else 'changed'}, trust {trust}"
    yield ""
    yield f"{visible(path)} ({done})"
    if base != (None if before is None else digest(before)):
        yield "it was changed since: this cannot be approved any more"
    yield from _diff(_shown(before), _shown(after))
    if before is not None and after is not None:
        yield "whole text:"
        yield from (f"| {line}" for line in _shown(after))


def _shown(content: bytes | None) -> list[str]:
    """The lines of a file, each with everything that does not show made visible."""
    if content is None:
        return []
    text = content.decode("utf-8", "backslashreplace")
    lines = [visible(f"{line}\n").removesuffix("\n").replace("\r", "\\u{d}") for line in text.split("\n")]
    return [*lines[:-1], f"{lines[-1]}\\ no line feed"] if lines[-1] else lines[:-1]


def _diff(before: list[str], after: list[str]) -> Iterator[str]:
    """What changes, line by line: `-` goes, `+` comes; unchanged lines are left out."""
    if max(len(before), len(after)) > MAX_DIFF_LINES:
        yield from (f"- {line}" for line in before)
        yield from (f"+ {line}" for line in after)
        return
    matcher = difflib.SequenceMatcher(None, before, after)
    for tag, start, end, new_start, new_end in matcher.get_opcodes():
        if tag != "equal":
            yield f"@ line {start + 1}"
            yield from (f"- {line}" for line in before[start:end])
            yield from (f"+ {line}" for line in after[new_start:new_end])
