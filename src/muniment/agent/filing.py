"""Write the fact of a `Decision` with the tools of a run, one `Reply` per turn.

This code writes once (`write_file`), and ends with a sentence. It does not search, because the brief contains
the similar entries (`model.RelatedEntry`). It stores nothing between turns: the messages alone determine the
next step. So both models without own actions can use it: the built-in rules, and a language model that only
decides.

F1  The text is written verbatim below the front matter: to a new file, or to the entry that it updates.
F2  No other file is replaced: if a name is in use, a digest is added to it.
F3  If an entry already contains the fact, nothing is written; the final sentence contains the path of that
    entry.
F4  If a write is denied, another name may be tried once. If the update of an entry is denied, the fact is
    written to a new file. If the policy allows no file in the topic folder, it is written directly into the
    scope. After any other denial, the attempt ends. There are at most `MAX_WRITES` writes, in at most three
    turns.
F5  The independent items of a list are written to separate files, in the same turns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
"""Maximum attempts to write one text."""

TURNS_TO_WRITE: Final = 2
"""Turns for one write and the final sentence.

If only these are left, for example after a conflict, a digest is added to the name, so that the write
succeeds: a duplicate fact is better than a lost one.
"""

_AVOIDABLE_CODES: Final = frozenset({"not_read", "exists_as", "not_a_file", "bad_name"})
"""Codes of a failed write that may not occur with another name."""

_Write = tuple[ToolCall, ToolMessage]


def create_next_reply(decisions: Sequence[Decision], request: ModelRequest) -> Reply:
    """Return the next step for `decisions`: the next writes, or the final sentences.

    Args:
        decisions: where to store each fact.
        request: the request to the model, with the results of earlier writes.
    """
    filings = [_Writing(number, each, request) for number, each in enumerate(decisions, 1)]
    if calls := tuple(call for each in filings if (call := each.create_call()) is not None):
        return Reply(calls=calls)
    return Reply("\n".join(each.describe_result() for each in filings))


class _Writing:
    """The progress of one decision in a run.

    Args:
        number: the number of the decision, which is part of the ids of its calls.
        decision: where to store the fact.
        request: the request to the model, with the results of earlier writes.
    """

    def __init__(self, number: int, decision: Decision, request: ModelRequest) -> None:
        self._number, self._decision, self._brief = number, decision, request.brief
        self._writes = list(_iterate_writes(f"write-{number}-", request.messages))
        self._known = _find_known(decision.text, request.brief)
        self._may_write = any(tool.name == "write_file" for tool in request.tools)
        # In a run without reading tools (`clean`), the name does not matter: later code finds a free one.
        self._is_blind = (
            not self._writes
            and any(tool.name == "read_file" for tool in request.tools)
            and request.turns_left <= TURNS_TO_WRITE
        )

    def create_call(self) -> ToolCall | None:
        """Return the next write for the decision, or None if no further write is possible or needed."""
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
        """Return the final sentence: the path of the saved fact, or the reason why it was not saved."""
        if self._known is not None:
            return f"Already known: {self._known.text}"
        if not self._writes:
            return "Not saved: no turn is left for a write."
        call, answer = self._writes[-1]
        if answer.verdict == "allow":
            return f"Saved to {call.arguments['path']}: {self._decision.title}"
        return f"Not saved: the write failed with {answer.code}."

    def _can_avoid(self) -> bool:
        """Return whether another name may help after the last write has failed."""
        code = self._writes[-1][1].code
        was_update = len(self._writes) == 1 and self._decision.updates is not None
        is_in_folder = code == "refused" and "/" in self._decision.file
        return len(self._writes) < MAX_WRITES and (code in _AVOIDABLE_CODES or was_update or is_in_folder)

    def _choose_free_path(self) -> str:
        """Return the path for the next write: the entry to update, or the first path that may be free."""
        used_paths = {fold(each.path.text) for each in self._brief.related}
        used_paths.update(fold(call.arguments["path"]) for call, _ in self._writes)
        if self._decision.updates is not None and not self._writes:
            return self._decision.updates.text
        return next(path for path in self._iterate_paths() if fold(path) not in used_paths)

    def _iterate_paths(self) -> Iterator[str]:
        """Yield the paths to try, in order.

        The later paths are free, unless another process has created them on purpose.
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
        yield _add_digest(f"{folder}/{stem}{FILE_SUFFIX}", decision.text)
        yield from (
            f"{folder}/{build_anonymous_slug(decision.text)}-{number}{FILE_SUFFIX}" for number in count(2)
        )


def _iterate_writes(prefix: str, messages: Sequence[Message]) -> Iterator[_Write]:
    """Yield the earlier writes of one decision with their results, in order.

    Args:
        prefix: the beginning of the ids of these calls.
        messages: the conversation so far.
    """
    answers = {message.call_id: message for message in messages if isinstance(message, ToolMessage)}
    for message in messages:
        if isinstance(message, AssistantMessage):
            for call in message.calls:
                if call.id.startswith(prefix) and call.id in answers:
                    yield call, answers[call.id]


def is_known(text: str, brief: Brief) -> bool:
    """Return whether a related entry of the brief already states a text."""
    return _find_known(text, brief) is not None


def _find_known(text: str, brief: Brief) -> CanonicalPath | None:
    """Return the path of the entry that already states a text, or None.

    An entry in a scope that the run may not write is ignored: it may be deleted without notice.
    """
    text_key = build_comparison_key(text)
    stating_paths = (each.path for each in brief.related if text_key in each.statements)
    return next((path for path in stating_paths if path.scope in brief.writable), None)


# -- routing -----------------------------------------------------------------------------------------
#
# Decide where to store a fact by the cue tables: its scope, type, topic and title.
#
# Scope: each class of cues that occurs adds its weight to `user` or `project`. The larger sum wins. If the
# sums are equal, or no cue occurs, the scope is `project`. If the run may write only one of the two scopes,
# that one is used.
#
# Topic: the topic with the most cues, or none. Other entries of the memory do not influence it.
#
# The result depends only on the text, and every text gets one.

USER: Final = Scope("user")
PROJECT: Final = Scope("project")
ORDER: Final = "order"
"""The class of `cues.toml` for instructions how to work."""

_URL: Final = re.compile(r"\b(?:https?|ssh|git|ftp)://\S+", re.IGNORECASE)
_QUOTED: Final = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|\"[^\"\n]*\"|\u201c[^\u201d\n]*\u201d|\u00ab[^\u00bb\n]*\u00bb", re.DOTALL
)
"""Matches code and quotations: they are not statements about the person or project."""

_CODE: Final = re.compile(r"\w+/[\w./-]+|\b\w+\.(?:py|ts|js|md|toml|ya?ml|json|sh|go|rs|sql)\b|`[^`\n]+`")
_CODE_WEIGHT: Final = 1
"""The weight that a path or code adds to the scope `project`.

It is lower than that of any cue, so it only decides a tie.
"""

_FOLDED_CHARS: Final = 2 * CUE_CHARS
"""Maximum characters of a text after `fold_words`, which may turn one character into eight."""


@dataclass(frozen=True, slots=True)
class CueReading:
    """The properties of a fact that its cues suggest.

    Attributes:
        scope: the scope to use, if the run may write there.
        type: the type of the entry.
        topic: the folder; empty: no folder.
        is_sure: whether at least one cue supports the scope, and no cue supports another scope.
    """

    scope: Scope
    type: EntryType
    topic: str
    is_sure: bool


@lru_cache(maxsize=16)
def read_cues(fact: str) -> CueReading:
    """Return the properties of a fact that its cues suggest. Cost: a few milliseconds, for any length."""
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
    """Decide where to store the fact of `brief`. The independent items of a list are decided separately.

    Args:
        brief: the job of the run; only scopes in which the run may write are used.
        decided: scope and type of all entries, if a model chose them; None: the rules choose.

    Returns:
        The decisions in order; empty if the run may not write.
    """
    if not brief.writable:
        return ()
    texts = () if brief.is_single_entry else split_separate_items(brief.fact)
    found = tuple(_separate_files(_decide_entry(text, brief, decided) for text in texts))
    targets = [fold(f"{each.scope}/{each.file}") for each in found]
    targets += [each.updates.text for each in found if each.updates is not None]
    if found and len(set(targets)) == len(targets):
        return found
    return (_decide_entry(brief.fact, brief, decided),)


def _separate_files(decisions: Iterable[Decision]) -> Iterator[Decision]:
    """Yield decisions; of several texts with the same file, all but the first get a name with a digest.

    Texts that are equal but for case and punctuation retain the same file.
    """
    keys: dict[str, str] = {}
    for each in decisions:
        key = build_comparison_key(each.text)
        is_first = keys.setdefault(fold(f"{each.scope}/{each.file}"), key) == key
        yield each if is_first else replace(each, file=_add_digest(each.file, each.text))


def _add_digest(file: str, text: str) -> str:
    """Return the path of a file with a digest of a text appended to its name."""
    digest = build_anonymous_slug(text).removeprefix("note-")
    return f"{file.removesuffix(FILE_SUFFIX)}-{digest}{FILE_SUFFIX}"


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
    """Yield the related entries that the fact of a decision replaces; they have the same scope and type.

    An entry that also contains a part of the new fact is excluded, because this part would be lost with it.
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
    """Return the words of a fact without code, quotations, URLs and introductions.

    If nothing is left, return all words. The result has the form of `fold_words`.

    Args:
        beginning: the beginning of the fact.
        tables: the cue tables.
    """
    stated = fold_words(_QUOTED.sub(" \u2022 ", _URL.sub(" ", beginning)))
    while (end := tables.lead_in.find_first_end(stated)) is not None and end < len(stated) - 1:
        stated = stated[end:]
    return stated if stated.strip() else fold_words(beginning)


def _extract_main_clause(beginning: str, tables: Cues) -> str:
    """Return the words after the comma, if a fact begins with a subordinate clause; empty: it does not."""
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
    """Return the topic with the most cues; empty: no topic has a cue.

    If several topics have the same number of cues, return the first one in the file.
    """
    text = fold_words(beginning)[:_FOLDED_CHARS]
    counts = [(table.count_matches(text), topic) for topic, table in tables.topics]
    most, topic = max(counts, key=lambda counted: counted[0])
    return topic if most else ""


# -- rules -------------------------------------------------------------------------------------------
#
# The built-in rules as a model: they always decide in the same way, and need neither network nor key.
#
# They decide by the cue tables, and write with the tools of the run. The same request always gets the same
# reply: nothing is stored between turns, and only the results of earlier calls are read.


class RuleWriter:
    """The built-in rules, as a `Model`.

    Example: `muniment.open(workspace=".")` uses these rules by default.
    """

    name = "rules"

    def respond(self, request: ModelRequest) -> Reply:
        """Return the next step of the run.

        It never raises, for any fact and tool result. Cost: milliseconds, no I/O.
        """
        decisions = decide_entries(request.brief)
        if not decisions:
            return Reply("Not saved: this run has no writable scope.")
        return create_next_reply(decisions, request)
