"""`protocol = "decide"`: the model says once whose a fact is and of which type, and code files it.

Scope and type are all that is asked for: title, topic and file are the rules' (`routing.route`), and the
fact is filed verbatim by the same code (`filing.py`). So a weak or hostile model can misfile a fact, and no
more. Where the rules are sure, it is not asked.

Nothing is kept between turns: the decision stands in the messages, as the words of the answer that made
the first calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from muniment.agent.chat import Document
from muniment.agent.decision import Decision
from muniment.agent.exact_json import NotJson, first_json, parse_json
from muniment.agent.filing import next_reply
from muniment.agent.model import AssistantMessage, Brief, Reply, Request
from muniment.agent.prompt import decision_messages
from muniment.agent.routing import read, route
from muniment.content.entry import TYPES, EntryType
from muniment.names import Scope

MAX_WORDS: Final = 32_768
"""Characters of a model's words in which a decision is looked for: the last, behind whatever it thought."""

MAX_ATTEMPTS: Final = 16
"""Places at which a decision is looked for in a model's words."""

_JOB: Final = 2
"""Messages of a run before the model's first: instructions and job."""


def question(request: Request) -> Request:
    """`request` as the one question that the model is asked: no tools, and what is to be decided."""
    return replace(request, messages=decision_messages(request.brief), tools=())


def decision_schema(brief: Brief) -> tuple[str, Document]:
    """Name and JSON Schema of a decision."""
    shape = {
        "type": "object",
        "properties": {
            "scope": {"type": "string", "enum": [scope.name for scope in brief.scopes if scope.writable]},
            "type": {"type": "string", "enum": list(TYPES)},
        },
        "required": ["scope", "type"],
        "additionalProperties": False,
    }
    return "decision", shape


def sure(brief: Brief) -> Decision | None:
    """What the rules decide, where no cue speaks against it."""
    reading = read(brief.fact)
    is_writable = reading.scope in {each.name for each in brief.scopes if each.writable}
    return route(brief) if reading.is_sure and is_writable else None


def decision_in(text: str, brief: Brief) -> Decision | None:
    """The decision in a model's words; None where there is none. Scope and type are among those asked for."""
    found = [each for each in _objects(text) if "scope" in each]
    match found[-1:]:
        case [{"scope": str(scope), "type": str(kind)}]:
            pass
        case _:
            return None
    if kind not in TYPES or scope not in {each.name for each in brief.scopes if each.writable}:
        return None
    return route(brief, (Scope(scope), EntryType(kind)))


def first_reply(decision: Decision, request: Request) -> Reply:
    """The first step of filing `decision`, with the decision as its words for the turns to come."""
    reply = next_reply(decision, replace(request, messages=request.messages[:_JOB]))
    said = json.dumps({"scope": decision.scope, "type": decision.type})
    return replace(reply, text=said) if reply.calls else reply


def later_reply(request: Request) -> Reply | None:
    """The next step of filing what was decided in an earlier turn of the run; None: nothing was."""
    for at, message in enumerate(request.messages):
        if isinstance(message, AssistantMessage) and message.calls:
            decision = decision_in(message.text, request.brief)
            if decision is not None:
                since = (*request.messages[:_JOB], *request.messages[at:])
                return next_reply(decision, replace(request, messages=since))
    return None


def _objects(text: str) -> Iterator[Any]:
    """The words as one JSON object, else those in them: in a fence or not, behind the model's thinking."""
    with suppress(NotJson):
        whole = parse_json(text[:MAX_WORDS])
        if isinstance(whole, dict):
            yield whole
            return
    _, _, said = text[-MAX_WORDS:].rpartition("</think>")
    at = -1
    for _ in range(MAX_ATTEMPTS):
        if (at := said.find("{", at + 1)) < 0:
            return
        with suppress(NotJson):
            value, end = first_json(said, at)
            yield value
            at = end - 1
