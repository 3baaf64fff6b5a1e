"""From a fact to a `Decision`, by the cue tables: which scope, type, topic and title.

Scope: each class of cues that occurs adds its weight to `user` or `project`; the larger sum wins, a
tie or no cue is `project`. Where the run may write only one of them, that one it is.
Topic: the one with the most cues, else none; what else the memory holds, in which order it came, says
nothing about it.
Pure; deterministic; any text is routed.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from muniment.agent.cues import CUE_CHARS, CueClass, Cues, cues, folded
from muniment.agent.decision import Decision, slug, title_of
from muniment.agent.model import Brief
from muniment.content.entry import EntryType
from muniment.names import Scope
from muniment.policy.grammar import FILE_SUFFIX

USER: Final = Scope("user")
PROJECT: Final = Scope("project")
ORDER: Final = "order"
"""The class of `cues.toml` that tells how to work."""

_URL: Final = re.compile(r"\b(?:https?|ssh|git|ftp)://\S+", re.IGNORECASE)
_NOT_STATED: Final = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|\"[^\"\n]*\"|\u201c[^\u201d\n]*\u201d|\u00ab[^\u00bb\n]*\u00bb", re.DOTALL
)
"""Code and quotations: what they say is not said of the person or project."""

_CODE: Final = re.compile(r"\w+/[\w./-]+|\b\w+\.(?:py|ts|js|md|toml|ya?ml|json|sh|go|rs|sql)\b|`[^`\n]+`")
_CODE_WEIGHT: Final = 1
"""A path or code speaks for the project, less than any cue: it only breaks a tie."""

_FOLDED_CHARS: Final = 2 * CUE_CHARS
"""Of them, folded; a single character may become eight."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the cue tables say of a fact.

    Attributes:
        scope: where it belongs if the run may write there.
        topic: the folder that its words suggest; empty for none.
        is_sure: some cue speaks for the scope, and none against it.
    """

    scope: Scope
    type: EntryType
    topic: str
    is_sure: bool


@lru_cache(maxsize=1)
def read(fact: str) -> Reading:
    """Match `fact` against every table. Cost: a few milliseconds, whatever its length, once a run."""
    tables = cues()
    head = fact[:CUE_CHARS]
    text = _stated(head, tables)[:_FOLDED_CHARS]
    main = _main_clause(head, tables)[:_FOLDED_CHARS]
    found = tuple(
        each
        for each in tables.classes
        if each.pattern.search(text) or (each.name == ORDER and each.pattern.search(main))
    )
    scope = _scope(found, has_code=_CODE.search(_URL.sub("", head)) is not None)
    is_sure = {each.scope for each in found} == {scope}
    is_reference = _URL.search(head) is not None or tables.pointer.search(text) is not None
    return Reading(scope, _type(scope, found, is_reference=is_reference), _topic(head, tables), is_sure)


def route(brief: Brief, decided: tuple[Scope, EntryType] | None = None) -> Decision | None:
    """Decide where the fact of `brief` goes.

    Args:
        brief: the run; only its writable scopes count.
        decided: scope and type, where a model chose them.

    Returns:
        The decision, or None where the run may write nowhere.
    """
    reading = read(brief.fact)
    writable = [each.name for each in brief.scopes if each.writable]
    if not writable:
        return None
    chosen, kind = decided or (reading.scope, reading.type)
    scope = next((each for each in (chosen, USER, PROJECT) if each in writable), writable[0])
    title = title_of(brief.fact)
    name = slug(title, brief.fact) + FILE_SUFFIX
    return Decision(scope, kind, f"{reading.topic}/{name}" if reading.topic else name, title, brief.fact)


def _stated(head: str, tables: Cues) -> str:
    """The folded text without code, quotations, URLs and introductions; the whole if nothing is left."""
    stated = folded(_NOT_STATED.sub(" \u2022 ", _URL.sub(" ", head)))
    while (introduced := tables.lead_in.match(stated)) is not None and introduced.end() < len(stated) - 1:
        stated = stated[introduced.end() :]
    return stated if stated.strip() else folded(head)


def _main_clause(head: str, tables: Cues) -> str:
    """What follows the comma of a clause that opens the text, folded; empty where none does."""
    clause, comma, main = re.sub("[\uff0c\u3001]", ",", head).partition(",")
    first, _, _ = folded(clause).strip().partition(" ")
    return folded(main) if comma and first in tables.opening else ""


def _scope(found: tuple[CueClass, ...], *, has_code: bool) -> Scope:
    sums = Counter({PROJECT: _CODE_WEIGHT if has_code else 0})
    for each in found:
        sums[Scope(each.scope)] += each.weight
    return USER if sums[USER] > sums[PROJECT] else PROJECT


def _type(scope: Scope, found: tuple[CueClass, ...], *, is_reference: bool) -> EntryType:
    if is_reference:
        return EntryType.REFERENCE
    if any(each.name == ORDER for each in found):
        return EntryType.FEEDBACK
    return EntryType.USER if scope == USER else EntryType.PROJECT


def _topic(head: str, tables: Cues) -> str:
    """The topic with the most cues; the earlier one of the table where two have as many."""
    text = folded(head)[:_FOLDED_CHARS]
    counts = [(len(pattern.findall(text)), topic) for topic, pattern in tables.topics]
    most, topic = max(counts, key=lambda counted: counted[0])
    return topic if most else ""
