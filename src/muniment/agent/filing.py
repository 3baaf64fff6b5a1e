"""Files a `Decision` through the tools of a run, one `Reply` a turn.

Look (`grep`), read what may be the same (`read_file`), write once (`write_file`), end in words. Which
step comes next is read from the messages alone, so that any stateless model may drive it: the rules,
or a language model that only decides.

F1  The text is written verbatim below the front matter, to a name that nothing seen so far has.
F2  Nothing is replaced: a name that turns out to be taken gets a number, then a digest.
F3  What is known already is not written again; the last words name the entry that was read.
F4  A name that is refused is avoided once: a topic folder that the policy does not grant by the scope
    itself. Any other refusal ends it. At most `MAX_WRITES` writes are tried, in at most five turns.

In a run that shows nothing (`clean`), only `write_file` is on offer, and it is the first step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import lru_cache
from itertools import count
from typing import Any, Final

from muniment.agent.decision import (
    CUE_CHARS,
    CueClass,
    Cues,
    Decision,
    anonymous,
    cues,
    folded,
    is_unspaced,
    is_word_character,
    slug,
    title_of,
)
from muniment.agent.model import AssistantMessage, Brief, Message, ModelRequest, Reply, ToolCall, ToolMessage
from muniment.content.entry import EntryType, completed, parse
from muniment.content.expiry import expiry_in
from muniment.content.words import comparable
from muniment.errors import PathEscape, Refusal
from muniment.kernel.names import INDEX_DIRECTORY, INDEX_NAME, Scope
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, canonicalise, fold, normalised
from muniment.tools.calls import MAX_READ_LINES

# -- known -------------------------------------------------------------------------------------------
#
# What the memory already holds of a fact: what to search for, and what the answers mean.
#
# The answers come from files that anyone may have written. Every path in them is canonicalised before it
# is used, a line that does not parse is passed over, and no text of an entry is ever more than compared.
#
# Same fact: the same as `content.likeness` sees it, as the whole body of an entry or as an item of a body
# that is nothing but one flat list. Elsewhere what stands around a line may turn its meaning ("Never do any
# of this:"), so a fact that stands there is saved once more. Likewise where only a part of the file was
# shown. Looked for are the entries that hold the fact's first words in sequence, or at least half of its
# rarest words; another spelling of all of them is not found.

LINE_WORDS: Final = 24
"""Words of the fact searched for as the beginning of a line, or the whole of it if there are no more."""

SEQUENCE_WORDS: Final = 5
"""Words of the fact searched for anywhere in a line, for entries that were wrapped or listed."""

SEQUENCE_CHARS: Final = 700
"""Characters of a pattern of words in sequence; `grep` takes 1000."""

SEQUENCE_MATCHES: Final = 60
TERM_MATCHES: Final = 250
"""Matching lines asked for, at most 200 characters each: `grep` shows 60 000 characters."""

TERMS: Final = 8
"""Rare words searched for in any order."""

TERM_CHARS: Final = 40
"""Characters of a word that are searched for; the rest of a longer one is not looked at."""

READS: Final = 6
"""Entries that are read to compare them."""

_HIT: Final = re.compile(r"([^:\n]{1,1024}):[0-9]{1,9}: (.*)", re.DOTALL)
_NUMBERED: Final = re.compile(r"([0-9]{1,9})\t(.*)", re.DOTALL)
_ITEM: Final = re.compile(r"(?:[-*+]|[0-9]{1,9}[.)])[ \t]+(\S.*)", re.DOTALL)
_CUT_MARK: Final = "\u2026"
"""What `grep` ends a line with that is too long to be shown whole."""

_CUT: Final = re.compile(r"\[truncated: [0-9]+ lines in all; read on with offset=[0-9]+\]")
_CHUNK: Final = re.compile("[\u30a0-\u30ff]{2,}|[\u3400-\u9fff]{2}|[a-z0-9]{2,}|[\u0e00-\u0eff]{4,12}")
"""Parts of a run without spaces: a katakana word, two Han characters, a Latin word, some Thai."""

_BETWEEN: Final = r"[\W_]"
"""What may stand between two words: in RE2 everything but ASCII letters and digits. That is too much, but
`[^\\pL\\pM\\pN]` once a word makes a pattern that takes 25 times as long to compile (measured)."""

_EMPHASIS: Final = "*_`~ "


@dataclass(frozen=True, slots=True)
class GrepSearch:
    """One `grep` to make: its arguments, and whether it looks for words in sequence or for any of some."""

    in_sequence: bool
    arguments: dict[str, Any]


@dataclass(slots=True)
class GrepHit:
    """What the searches found in one file.

    Attributes:
        in_sequence: how many of the searches for words in sequence found it.
        terms: the rare words of the fact on its matching lines.
        is_equal: whether one of these lines begins as the fact does and, where it is shown whole, equals it.
    """

    path: CanonicalPath
    is_equal: bool = False
    in_sequence: int = 0
    terms: set[str] = field(default_factory=set)


def searches(fact: str) -> list[GrepSearch]:
    """What to search for to find `fact`: its words in sequence, then its rare words. Never empty."""
    lines = (line for line in fact.splitlines() if any(map(is_word_character, line)))
    words = _tokens(next(lines, ""))
    if words:
        patterns = [_line_of(words), _sequence(words[:SEQUENCE_WORDS])[0]]
    else:
        patterns = [_quoted("".join(fact.split())[:TERM_CHARS])]
    asked = [(True, pattern, SEQUENCE_MATCHES) for pattern in patterns]
    if alternatives := _alternatives(fact):
        asked.append((False, "|".join(map(_quoted, alternatives)), TERM_MATCHES))
    return [
        GrepSearch(in_sequence, {"pattern": pattern, "path": "", "ignore_case": True, "max_matches": count})
        for in_sequence, pattern, count in asked
    ]


def terms(fact: str) -> tuple[str, ...]:
    """The fact's rare words, folded: the longest that are not common; all words if there are none."""
    seen = dict.fromkeys(word for token in folded(fact[:CUE_CHARS]).split() for word in _chunks(token))
    rare = [word for word in seen if not _is_common(word)]
    return tuple(sorted(rare or seen, key=len, reverse=True)[:TERMS])


@lru_cache(maxsize=2)
def hits(fact: str, answers: tuple[tuple[bool, str], ...], scopes: frozenset[Scope]) -> tuple[GrepHit, ...]:
    """What the answers to `searches` found, best first. Kept for the next turn, which asks the same.

    Args:
        fact: what was searched for.
        answers: of each search, whether it was one for words in sequence, and its text.
        scopes: the scopes that count; files elsewhere, indexes and anything that is no path are dropped.
    """
    wanted = terms(fact)
    first = comparable(next(iter(fact.splitlines()), ""))
    found: dict[str, GrepHit] = {}
    for in_sequence, answer in answers:
        for path, text in _parsed_hits(answer, scopes):
            hit = found.setdefault(path.text, GrepHit(path))
            hit.in_sequence += in_sequence
            hit.is_equal = hit.is_equal or _equals(text, first)
            words = folded(text)
            hit.terms.update(term for term in wanted if term in words)
    return tuple(
        sorted(
            found.values(),
            key=lambda hit: (not hit.is_equal, -hit.in_sequence, -len(hit.terms), hit.path),
        )
    )


def worth_reading(fact: str, found: Sequence[GrepHit]) -> list[GrepHit]:
    """The entries among `found` that may hold the same fact, at most `READS`."""
    half = len(terms(fact)) / 2
    return [hit for hit in found if hit.in_sequence or (hit.terms and len(hit.terms) >= half)][:READS]


def holds(shown: str, fact: str) -> bool:
    """Whether an entry, as `read_file` showed it, holds the same fact in its body, and ends no sooner."""
    wanted = comparable(fact)
    body = _body(shown, expiry_in(fact, datetime.now(UTC).date()))
    return any(comparable(part) == wanted for part in ("\n".join(body), *_items(body)))


def listed_names(answer: str) -> Iterator[str]:
    """Names of files and directories that an answer of `ls` lists."""
    for line in answer.split("\n"):
        yield line.rpartition(" (")[0] if line.endswith(" bytes)") else line.removesuffix("/")


def _parsed_hits(answer: str, scopes: Collection[Scope]) -> Iterator[tuple[CanonicalPath, str]]:
    hits = [hit for line in answer.split("\n") if (hit := _HIT.fullmatch(line))]
    paths = {text: _entry_at(text, scopes) for text in {hit[1] for hit in hits}}
    for hit in hits:
        if (path := paths[hit[1]]) is not None:
            yield path, hit[2]


def _entry_at(text: str, scopes: Collection[Scope]) -> CanonicalPath | None:
    try:
        path = canonicalise(text, scopes)
    except (PathEscape, Refusal):
        return None
    is_index = path.name == INDEX_NAME or path.segments[1:2] == (INDEX_DIRECTORY,)
    return path if path.rel and not is_index else None


def _equals(line: str, first: str) -> bool:
    """Whether a line that `grep` shows, maybe cut and maybe of a list, is the fact's first one."""
    item = _ITEM.fullmatch(line)
    texts = [line] if item is None else [line, item[1]]
    if line.endswith(_CUT_MARK):
        return any(first.startswith(comparable(text.removesuffix(_CUT_MARK))) for text in texts)
    return any(comparable(text) == first for text in texts)


def _body(shown: str, until: date | None) -> list[str]:
    """The lines of `shown` below front matter, bare; none of a part of a file, nor of what ends sooner."""
    told = shown.split("\n")
    numbered = [match for line in told if (match := _NUMBERED.fullmatch(line))]
    if not numbered or int(numbered[0][1]) > 1 or any(map(_CUT.fullmatch, told)):
        return []
    lines = [match[2] for match in numbered]
    ends = parse("\n".join(lines)).expires
    if ends is not None and (until is None or ends.date() < until):
        return []
    if lines[0].removeprefix("\ufeff").rstrip() == "---":
        closing = (at for at, line in enumerate(lines[1:], 1) if line.rstrip() in {"---", "..."})
        return lines[next(closing, 0) + 1 :]
    return lines


def _items(body: Sequence[str]) -> list[str]:
    """The items of a body that is one flat list and nothing else, or nothing."""
    found = [_ITEM.fullmatch(line) for line in body if line.strip()]
    items = [match[1] for match in found if match is not None]
    introduces = any(fold(item).rstrip(_EMPHASIS).endswith(":") for item in items)
    return [] if introduces or len(items) < len(found) else items


def _line_of(words: Sequence[str]) -> str:
    """A pattern for a line that begins with `words`, after markers or digits; ends with them if all fit."""
    pattern, used = _sequence(words[:LINE_WORDS])
    return rf"^(?:{_BETWEEN}|\d)*?{pattern}" + (f"{_BETWEEN}*$" if used == len(words) else "")


def _sequence(words: Sequence[str]) -> tuple[str, int]:
    """A pattern for `words` in sequence, as many as fit, and how many it takes whole."""
    pattern = ""
    for used, word in enumerate(words):
        both = "|".join(map(_quoted, dict.fromkeys((word[:TERM_CHARS], _nfkc(word)[:TERM_CHARS]))))
        longer = f"{pattern}{f'{_BETWEEN}+' if pattern else ''}(?:{both})"
        if len(longer) > SEQUENCE_CHARS:
            return pattern, used
        pattern = longer
        if len(word) > TERM_CHARS:
            return pattern, used
    return pattern, len(words)


def _alternatives(fact: str) -> list[str]:
    """The fact's rare words as it spells them, and in NFKC."""
    wanted = terms(fact)
    spelled: dict[str, None] = {}
    for token in _tokens(fact[:CUE_CHARS]):
        inside = folded(token)
        of_token = [term for term in wanted if term in inside]
        if of_token and not is_unspaced(token):
            spelled.update(dict.fromkeys((token[:TERM_CHARS], _nfkc(token)[:TERM_CHARS])))
        else:
            spelled.update(dict.fromkeys(of_token))
    return list(spelled)[: 2 * TERMS]


def _chunks(token: str) -> list[str]:
    return _CHUNK.findall(token) if is_unspaced(token) else [token]


def _is_common(word: str) -> bool:
    return word in cues().common or word.isdecimal() or (len(word) < len("api") and not is_unspaced(word))


def _tokens(text: str) -> list[str]:
    return "".join(char if is_word_character(char) else " " for char in text).split()


def _nfkc(text: str) -> str:
    return normalised("NFKC", text)


def _quoted(text: str) -> str:
    """`text` as RE2 takes it literally: ASCII that is neither letter nor digit gets a backslash."""
    return "".join(char if char.isalnum() or not char.isascii() else f"\\{char}" for char in text)


# -- filing ------------------------------------------------------------------------------------------

MAX_WRITES: Final = 2
"""Writes tried in a run of six turns: two turns go before them and one after."""

TURNS_TO_WRITE: Final = 2
"""Turns that it takes to write and to say so. With no more left, as after a conflict, nothing is looked up
and the name gets a digest: a fact that is filed twice is better than one that is lost."""

NUMBERED_NAMES: Final = range(2, 10)
"""Numbers that a taken name may get."""

_TAKEN: Final = frozenset({"not_read", "exists_as", "not_a_file", "bad_name"})
"""Codes of a write that another name may avoid."""

_SEQUENCE_ID: Final = "sequence"

Exchange = tuple[ToolCall, ToolMessage]


def next_reply(decision: Decision, request: ModelRequest) -> Reply:
    """The next step of filing `decision`, given what the run has answered so far."""
    done = _exchanges(request.messages)
    offered = {tool.name for tool in request.tools}
    writes = _of("write_file", done)
    if (
        saved := next((_path(call) for call, answer in writes if answer.verdict == "allow"), None)
    ) is not None:
        return Reply(f"Saved to {saved}: {decision.title}")
    if writes and (len(writes) == MAX_WRITES or not _avoidable(decision, writes[-1][1].code)):
        return Reply(f"Not saved: the write was answered with {writes[-1][1].code}.")
    if (known := _known_at(decision, done)) is not None:
        return Reply(f"Already known: {known}")
    if "write_file" not in offered:
        return Reply("Not saved: there is no turn left to write in.")
    is_blind = not writes and "grep" in offered and request.turns_left <= TURNS_TO_WRITE
    if not done and "grep" in offered and not is_blind:
        return Reply(calls=_search(decision.text))
    has_looked = writes or _of("read_file", done) or _of("ls", done)
    if not is_blind and not has_looked and {"read_file", "ls"} <= offered:
        return Reply(calls=_look(decision, _found(decision.text, done, _writable(request.brief))))
    return Reply(calls=(_write(decision, request.brief, done, is_blind=is_blind),))


def _avoidable(decision: Decision, code: str | None) -> bool:
    """Whether another name may be answered otherwise than with `code`."""
    return code in _TAKEN or (code == "refused" and "/" in decision.file)


def _writable(brief: Brief) -> frozenset[Scope]:
    """The scopes in which a fact counts as known: one that may not be written may also vanish unseen."""
    return frozenset(scope.name for scope in brief.scopes if scope.writable)


def _exchanges(messages: Sequence[Message]) -> list[Exchange]:
    """The calls made so far that were answered, in order."""
    answers = {message.call_id: message for message in messages if isinstance(message, ToolMessage)}
    return [
        (call, answers[call.id])
        for message in messages
        if isinstance(message, AssistantMessage)
        for call in message.calls
        if call.id in answers
    ]


def _of(tool: str, done: Sequence[Exchange]) -> list[Exchange]:
    return [each for each in done if each[0].tool == tool]


def _path(call: ToolCall) -> str:
    path: str = call.arguments["path"]
    return path


def _search(fact: str) -> tuple[ToolCall, ...]:
    """Step 1: the searches. The ids say later which answer belongs to which kind."""
    return tuple(
        ToolCall(f"{_SEQUENCE_ID if each.in_sequence else 'words'}-{number}", "grep", each.arguments)
        for number, each in enumerate(searches(fact), 1)
    )


def _found(fact: str, done: Sequence[Exchange], scopes: frozenset[Scope]) -> tuple[GrepHit, ...]:
    answers = tuple(
        (call.id.startswith(_SEQUENCE_ID), answer.text)
        for call, answer in _of("grep", done)
        if answer.verdict == "allow"
    )
    return hits(fact, answers, scopes)


def _look(decision: Decision, found: Sequence[GrepHit]) -> tuple[ToolCall, ...]:
    """Step 2: read what may be the same, and list the folder to see which names are taken."""
    reads = [
        ToolCall(f"read-{number}", "read_file", {"path": hit.path.text, "limit": MAX_READ_LINES})
        for number, hit in enumerate(worth_reading(decision.text, found), 1)
    ]
    folder, _, _ = f"{decision.scope}/{decision.file}".rpartition("/")
    return (*reads, ToolCall("ls-1", "ls", {"path": folder}))


def _known_at(decision: Decision, done: Sequence[Exchange]) -> str | None:
    """The path of an entry that was read and holds the same fact (F3)."""
    return next(
        (
            _path(call)
            for call, answer in _of("read_file", done)
            if answer.verdict == "allow" and holds(answer.text, decision.text)
        ),
        None,
    )


def _write(decision: Decision, brief: Brief, done: Sequence[Exchange], *, is_blind: bool) -> ToolCall:
    """Step 3: a new entry under the first name that is not known to be taken (F1, F2)."""
    taken = {fold(path) for path in _taken(decision, brief, done)}
    path = next(path for path in _names(decision, done, is_blind=is_blind) if fold(path) not in taken)
    labels = {"name": decision.title, "description": decision.description, "type": decision.type}
    front = completed(parse(""), labels)
    content = f"{front}{decision.text}\n"
    number = len(_of("write_file", done)) + 1
    return ToolCall(f"write-{number}", "write_file", {"path": path, "content": content})


def _taken(decision: Decision, brief: Brief, done: Sequence[Exchange]) -> Iterator[str]:
    """Paths that something was seen at."""
    scopes = frozenset(scope.name for scope in brief.scopes)
    yield from (hit.path.text for hit in _found(decision.text, done, scopes))
    yield from (_path(call) for tool in ("read_file", "write_file") for call, _ in _of(tool, done))
    for call, answer in _of("ls", done):
        if answer.verdict == "allow":
            yield from (f"{_path(call)}/{name}" for name in listed_names(answer.text))


def _names(decision: Decision, done: Sequence[Exchange], *, is_blind: bool) -> Iterator[str]:
    """Paths to try, in order; the last ones are free unless someone took them on purpose."""
    codes = {answer.code for _, answer in _of("write_file", done)}
    folder, _, name = f"{decision.scope}/{decision.file}".rpartition("/")
    stem = name.removesuffix(FILE_SUFFIX)
    if codes & {"not_a_file", "bad_name", "refused"}:
        folder = decision.scope
    if "bad_name" in codes:
        stem = anonymous(decision.text)
    if not is_blind:
        yield f"{folder}/{stem}{FILE_SUFFIX}"
    if not is_blind and "exists_as" not in codes and "not_read" not in codes:
        yield from (f"{folder}/{stem}-{number}{FILE_SUFFIX}" for number in NUMBERED_NAMES)
    yield f"{folder}/{stem}-{anonymous(decision.text).removeprefix('note-')}{FILE_SUFFIX}"
    yield from (f"{folder}/{anonymous(decision.text)}-{number}{FILE_SUFFIX}" for number in count(2))


# -- routing -----------------------------------------------------------------------------------------
#
# From a fact to a `Decision`, by the cue tables: which scope, type, topic and title.
#
# Scope: each class of cues that occurs adds its weight to `user` or `project`; the larger sum wins, a
# tie or no cue is `project`. Where the run may write only one of them, that one it is.
# Topic: the one with the most cues, else none; what else the memory holds, in which order it came, says
# nothing about it.
# Pure; deterministic; any text is routed.

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
class CueReading:
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
def read(fact: str) -> CueReading:
    """Match `fact` against every table. Cost: a few milliseconds, whatever its length, once a run."""
    tables = cues()
    head = fact[:CUE_CHARS]
    text = _stated(head, tables)[:_FOLDED_CHARS]
    main = _main_clause(head, tables)[:_FOLDED_CHARS]
    found = tuple(
        each
        for each in tables.classes
        if each.table.occurs(text) or (each.name == ORDER and each.table.occurs(main))
    )
    scope = _scope(found, has_code=_CODE.search(_URL.sub("", head)) is not None)
    is_sure = {each.scope for each in found} == {scope}
    is_reference = _URL.search(head) is not None or tables.pointer.occurs(text)
    return CueReading(scope, _type(scope, found, is_reference=is_reference), _topic(head, tables), is_sure)


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
    while (end := tables.lead_in.end_of_first(stated)) is not None and end < len(stated) - 1:
        stated = stated[end:]
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
    counts = [(table.count(text), topic) for topic, table in tables.topics]
    most, topic = max(counts, key=lambda counted: counted[0])
    return topic if most else ""


# -- rules -------------------------------------------------------------------------------------------
#
# The embedded writer: a deterministic model without network or key, driven like any other.
#
# It routes the fact by the cue tables and files it through the tools of the run. The same request gets the
# same reply: it keeps nothing between turns, and reads no message but the answers to its own calls.


class RuleWriter:
    """A `Model` that decides by rules.

    Example:
        `muniment.open(workspace=".")` uses it unless told otherwise.
    """

    name = "rules"

    def respond(self, request: ModelRequest) -> Reply:
        """The next step; never raises for any fact or answer of a tool. Cost: milliseconds, no I/O."""
        decision = route(request.brief)
        if decision is None:
            return Reply("Not saved: this run may write nowhere.")
        return next_reply(decision, request)
