"""Write a `Decision` with the tools of a run, one `Reply` per turn.

It writes once (`write_file`), and ends with a sentence. The brief contains the similar entries
(`model.RelatedEntry`), so it does not search. The next step is read from the messages alone, so that any
stateless
model may drive it: the rules, or a language model that only decides.

F1  The text is written verbatim below the front matter: to a new name, or to the entry that it updates.
F2  No other file is replaced: if a name is in use, a digest is added.
F3  A known fact is not written again; the last words contain the path of its entry.
F4  A denied name is avoided once: if the update of an entry is denied, by a new file; if the policy does not
    grant a topic folder, by the scope itself. Any other denial ends the attempt. At most `MAX_WRITES` writes
    are tried, in at most three turns.
F5  Separate items of a list are written one by one, in the same turns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Final

from muniment.agent.decision import (
    CUE_CHARS,
    CueClass,
    Cues,
    Decision,
    fold_words,
    load_cues,
)
from muniment.agent.model import (
    AssistantMessage,
    Brief,
    Message,
    ModelRequest,
    RelatedEntry,
    Reply,
    ToolCall,
    ToolMessage,
)
from muniment.agent.updates import supersedes
from muniment.content.entry import EntryType, complete_front_matter, parse
from muniment.content.provenance import split_separate_items
from muniment.content.titles import build_anonymous_slug, build_slug, derive_title
from muniment.content.words import build_comparison_key, list_statements
from muniment.kernel.names import Scope
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, fold

# -- filing ------------------------------------------------------------------------------------------

MAX_WRITES: Final = 2
"""Attempts to write one text."""

TURNS_TO_WRITE: Final = 2
"""Turns for a write and the final sentence. If no more are left, as after a conflict, a digest is added to
the name: a duplicate fact is better than a lost one.
"""

_AVOIDABLE_CODES: Final = frozenset({"not_read", "exists_as", "not_a_file", "bad_name"})
"""Codes of a write that another name may avoid."""

_Write = tuple[ToolCall, ToolMessage]


def create_next_reply(decisions: Sequence[Decision], request: ModelRequest) -> Reply:
    """Return the next step for `decisions`, given the results of the run."""
    filings = [_Writing(number, each, request) for number, each in enumerate(decisions, 1)]
    if calls := tuple(call for each in filings if (call := each.create_call()) is not None):
        return Reply(calls=calls)
    return Reply("\n".join(each.describe_result() for each in filings))


class _Writing:
    """The progress of one decision in a run."""

    def __init__(self, number: int, decision: Decision, request: ModelRequest) -> None:
        self._number, self._decision, self._brief = number, decision, request.brief
        self._writes = list(_iterate_writes(f"write-{number}-", request.messages))
        self._known = _find_known(decision.text, request.brief)
        self._may_write = any(tool.name == "write_file" for tool in request.tools)
        # In a run without reads (`clean`) every name is equally good: code finds a free one.
        self._is_blind = (
            not self._writes
            and any(tool.name == "read_file" for tool in request.tools)
            and request.turns_left <= TURNS_TO_WRITE
        )

    def create_call(self) -> ToolCall | None:
        """Return the next write, or None if no further write is possible or needed."""
        is_done = bool(self._writes) and self._writes[-1][1].verdict == "allow"
        is_stuck = bool(self._writes) and not self._can_avoid()
        if self._known is not None or is_done or is_stuck or not self._may_write:
            return None
        decision = self._decision
        labels = {"name": decision.title, "description": decision.description, "type": decision.type}
        content = f"{complete_front_matter(parse(''), labels)}{decision.text}\n"
        call_id = f"write-{self._number}-{len(self._writes) + 1}"
        return ToolCall(call_id, "write_file", {"path": self._choose_free_path(), "content": content})

    def describe_result(self) -> str:
        """Return the final sentence about the result."""
        if self._known is not None:
            return f"Already known: {self._known.text}"
        if not self._writes:
            return "Not saved: no turn is left for a write."
        call, answer = self._writes[-1]
        if answer.verdict == "allow":
            return f"Saved to {call.arguments['path']}: {self._decision.title}"
        return f"Not saved: the write failed with {answer.code}."

    def _can_avoid(self) -> bool:
        """Return whether a write to another name may have another result than the last one."""
        code = self._writes[-1][1].code
        was_update = len(self._writes) == 1 and self._decision.updates is not None
        is_in_folder = code == "refused" and "/" in self._decision.file
        return len(self._writes) < MAX_WRITES and (code in _AVOIDABLE_CODES or was_update or is_in_folder)

    def _choose_free_path(self) -> str:
        """Return the first name that is not known to be in use (F1, F2)."""
        used_paths = {fold(each.path.text) for each in self._brief.related}
        used_paths.update(fold(call.arguments["path"]) for call, _ in self._writes)
        if self._decision.updates is not None and not self._writes:
            return self._decision.updates.text
        return next(path for path in self._iterate_paths() if fold(path) not in used_paths)

    def _iterate_paths(self) -> Iterator[str]:
        """Yield paths to try, in order.

        The last ones are free unless another process created them on purpose.
        """
        decision, codes = self._decision, {answer.code for _, answer in self._writes}
        folder, _, name = f"{decision.scope}/{decision.file}".rpartition("/")
        stem = name.removesuffix(FILE_SUFFIX)
        if codes & {"not_a_file", "bad_name", "refused"}:
            folder = decision.scope
        if "bad_name" in codes:
            stem = build_anonymous_slug(decision.text)
        if not self._is_blind:
            yield f"{folder}/{stem}{FILE_SUFFIX}"
        yield f"{folder}/{stem}-{build_anonymous_slug(decision.text).removeprefix('note-')}{FILE_SUFFIX}"
        yield from (
            f"{folder}/{build_anonymous_slug(decision.text)}-{number}{FILE_SUFFIX}" for number in count(2)
        )


def _iterate_writes(prefix: str, messages: Sequence[Message]) -> Iterator[_Write]:
    """Yield the writes of one decision that have a result, in order."""
    answers = {message.call_id: message for message in messages if isinstance(message, ToolMessage)}
    for message in messages:
        if isinstance(message, AssistantMessage):
            for call in message.calls:
                if call.id.startswith(prefix) and call.id in answers:
                    yield call, answers[call.id]


def is_known(text: str, brief: Brief) -> bool:
    """Return whether an entry already states a text."""
    return _find_known(text, brief) is not None


def _find_known(text: str, brief: Brief) -> CanonicalPath | None:
    """Return the entry that already states a text (F3), or None.

    An entry in a scope that the run may not write does not count: it may be deleted unnoticed.
    """
    text_key = build_comparison_key(text)
    stating_paths = (each.path for each in brief.related if text_key in each.statements)
    return next((path for path in stating_paths if path.scope in brief.writable), None)


# -- routing -----------------------------------------------------------------------------------------
#
# From a fact to a `Decision`, by the cue tables: its scope, type, topic and title.
#
# Scope: each class of cues that occurs adds its weight to `user` or `project`. The larger sum wins; a tie or
# a fact without cues is `project`. If the run may write only one of them, that one is used.
# Topic: the one with the most cues, or none; other entries of the memory and their order do not count.
# Pure; deterministic; any text is routed.

USER: Final = Scope("user")
PROJECT: Final = Scope("project")
ORDER: Final = "order"
"""The class of `load_cues.toml` with instructions how to work."""

_URL: Final = re.compile(r"\b(?:https?|ssh|git|ftp)://\S+", re.IGNORECASE)
_QUOTED: Final = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|\"[^\"\n]*\"|\u201c[^\u201d\n]*\u201d|\u00ab[^\u00bb\n]*\u00bb", re.DOTALL
)
"""Code and quotations: they do not describe the person or project."""

_CODE: Final = re.compile(r"\w+/[\w./-]+|\b\w+\.(?:py|ts|js|md|toml|ya?ml|json|sh|go|rs|sql)\b|`[^`\n]+`")
_CODE_WEIGHT: Final = 1
"""The weight of a path or code for the project. It is lower than any cue: it only breaks a tie."""

_FOLDED_CHARS: Final = 2 * CUE_CHARS
"""Characters of the folded text; a single character may become eight."""


@dataclass(frozen=True, slots=True)
class CueReading:
    """The result of the cue tables for a fact.

    Attributes:
        scope: its scope, if the run may write there.
        topic: the folder that its words suggest; empty: none.
        is_sure: at least one cue supports the scope, and none supports another.
    """

    scope: Scope
    type: EntryType
    topic: str
    is_sure: bool


@lru_cache(maxsize=16)
def read_cues(fact: str) -> CueReading:
    """Match `fact` against every table. Cost: a few milliseconds for any length, once per run."""
    tables = load_cues()
    beginning = fact[:CUE_CHARS]
    text = _extract_statement(beginning, tables)[:_FOLDED_CHARS]
    main_clause = _extract_main_clause(beginning, tables)[:_FOLDED_CHARS]
    found = tuple(
        each
        for each in tables.classes
        if each.table.occurs(text) or (each.name == ORDER and each.table.occurs(main_clause))
    )
    scope = _choose_scope(found, has_code=_CODE.search(_URL.sub("", beginning)) is not None)
    is_sure = {each.scope for each in found} == {scope}
    is_reference = _URL.search(beginning) is not None or tables.pointer.occurs(text)
    return CueReading(
        scope,
        _choose_type(scope, found, is_reference=is_reference),
        _choose_topic(beginning, tables),
        is_sure,
    )


def decide_entries(brief: Brief, decided: tuple[Scope, EntryType] | None = None) -> tuple[Decision, ...]:
    """Decide where to store the fact of `brief`, or each item of a list of facts.

    Args:
        brief: the run; only its writable scopes count.
        decided: scope and type of all, if a model chose them.

    Returns:
        The decisions in order; empty if the run may not write.
    """
    if not brief.writable:
        return ()
    texts = () if brief.is_single_entry else split_separate_items(brief.fact)
    found = tuple(_decide_entry(text, brief, decided) for text in texts)
    targets = [fold(f"{each.scope}/{each.file}") for each in found]
    targets += [each.updates.text for each in found if each.updates is not None]
    if found and len(set(targets)) == len(targets):
        return found
    return (_decide_entry(brief.fact, brief, decided),)


def _decide_entry(text: str, brief: Brief, decided: tuple[Scope, EntryType] | None) -> Decision:
    reading, writable = read_cues(text), brief.writable
    preferred_scope, kind = decided or (reading.scope, reading.type)
    scope = next((each for each in (preferred_scope, USER, PROJECT) if each in writable), writable[0])
    title = derive_title(text)
    name = build_slug(title, text) + FILE_SUFFIX
    found = Decision(scope, kind, f"{reading.topic}/{name}" if reading.topic else name, title, text)
    replaced_paths = [each.path for each in iterate_replaceable(found, brief)]
    return replace(found, updates=replaced_paths[0]) if len(replaced_paths) == 1 else found


def iterate_replaceable(decision: Decision, brief: Brief) -> Iterator[RelatedEntry]:
    """Yield the related entries that a decision supersedes, of its scope and type.

    An entry that also states a part of the fact is excluded: this part would be lost with it.
    """
    fact_keys = {build_comparison_key(text) for text in (brief.fact, *split_separate_items(brief.fact))}
    for each in brief.related:
        is_same_kind = each.path.scope == decision.scope and each.type in {decision.type, None}
        contains_fact = not fact_keys.isdisjoint(list_statements(each.body))
        if (
            each.is_replaceable
            and is_same_kind
            and not contains_fact
            and supersedes(decision.text, each.body)
        ):
            yield each


def _extract_statement(beginning: str, tables: Cues) -> str:
    """Return the folded text without code, quotations, URLs and introductions.

    If nothing is left, return all of it.
    """
    stated = fold_words(_QUOTED.sub(" \u2022 ", _URL.sub(" ", beginning)))
    while (end := tables.lead_in.find_first_end(stated)) is not None and end < len(stated) - 1:
        stated = stated[end:]
    return stated if stated.strip() else fold_words(beginning)


def _extract_main_clause(beginning: str, tables: Cues) -> str:
    """Return the folded text after the comma of a subordinate clause at the start, or an empty text."""
    clause, comma, main = re.sub("[\uff0c\u3001]", ",", beginning).partition(",")
    first, _, _ = fold_words(clause).strip().partition(" ")
    return fold_words(main) if comma and first in tables.opening else ""


def _choose_scope(found: tuple[CueClass, ...], *, has_code: bool) -> Scope:
    sums = Counter({PROJECT: _CODE_WEIGHT if has_code else 0})
    for each in found:
        sums[Scope(each.scope)] += each.weight
    return USER if sums[USER] > sums[PROJECT] else PROJECT


def _choose_type(scope: Scope, found: tuple[CueClass, ...], *, is_reference: bool) -> EntryType:
    if is_reference:
        return EntryType.REFERENCE
    if any(each.name == ORDER for each in found):
        return EntryType.FEEDBACK
    return EntryType.USER if scope == USER else EntryType.PROJECT


def _choose_topic(beginning: str, tables: Cues) -> str:
    """Return the topic with the most cues; the earlier one in the table if two have the same number."""
    text = fold_words(beginning)[:_FOLDED_CHARS]
    counts = [(table.count_matches(text), topic) for topic, table in tables.topics]
    most, topic = max(counts, key=lambda counted: counted[0])
    return topic if most else ""


# -- rules -------------------------------------------------------------------------------------------
#
# The embedded writer: a deterministic model without network or key, driven like any other.
#
# It routes the fact by the cue tables and writes it with the tools of the run. The same request gets the same
# reply: it stores nothing between turns, and only reads the results of its calls.


class RuleWriter:
    """A `Model` that decides by rules.

    Example: `muniment.open(workspace=".")` uses it by default.
    """

    name = "rules"

    def respond(self, request: ModelRequest) -> Reply:
        """Return the next step; never raises for any fact or tool result. Cost: milliseconds, no I/O."""
        decisions = decide_entries(request.brief)
        if not decisions:
            return Reply("Not saved: this run has no writable scope.")
        return create_next_reply(decisions, request)
