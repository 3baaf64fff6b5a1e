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

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

from muniment.agent.decision import Decision, anonymous
from muniment.agent.known import (
    Hit,
    hits,
    holds,
    listed_names,
    searches,
    worth_reading,
)
from muniment.agent.model import AssistantMessage, Brief, Message, Reply, Request, ToolCall, ToolMessage
from muniment.content.entry import complete
from muniment.names import Scope
from muniment.policy.grammar import FILE_SUFFIX, fold
from muniment.tools.calls import MAX_READ_LINES

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


def next_reply(decision: Decision, request: Request) -> Reply:
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


def _found(fact: str, done: Sequence[Exchange], scopes: frozenset[Scope]) -> tuple[Hit, ...]:
    answers = tuple(
        (call.id.startswith(_SEQUENCE_ID), answer.text)
        for call, answer in _of("grep", done)
        if answer.verdict == "allow"
    )
    return hits(fact, answers, scopes)


def _look(decision: Decision, found: Sequence[Hit]) -> tuple[ToolCall, ...]:
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
    front = complete("", name=decision.title, description=decision.description, type=decision.type)
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
