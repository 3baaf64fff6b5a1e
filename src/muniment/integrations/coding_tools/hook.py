"""Answer the events that coding tools send to their hooks: entries for a session, a prompt or a subagent.

| event | answer |
|---|---|
| a session starts, or continues after a compaction | the standing context (`recall.standing`) |
| a session is resumed | nothing if it received the standing context, which it still contains |
| a prompt | entries that help with it; before them the standing context, if the session has not received it |
| a subagent starts | the standing context; a subagent has a separate record |
| a session will be compacted | nothing; its record is deleted |

- T1. A session receives an entry once, until it is compacted or starts again (`store.injected`).
- T2. Each tool accepts another form of answer, which its documentation defines; the members of the event
  identify the tool. Codex rejects an answer with unknown members, and so does Claude Code for some events.
- T3. An answer has at most `MAX_HOOK_TOKENS`.
- T4. Qwen Code replaces the text of a session start when it resumes a session, so it receives the text again.
- T5. Gemini CLI loses the first prompt of a resumed session if the start of the session injected a text, so
  the standing context comes with the first prompt. It announces a compaction before every request of its
  model; only one that the user requested counts.

The daemon and the command `muniment recall --hook` share this module.

Attacked in tests/surface/cli/test_hook.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from muniment.content.gates import clean_foreign_line
from muniment.errors import ConfigInvalid
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import digest
from muniment.kernel.names import RelPath
from muniment.operations.job_context import JobContext
from muniment.recall.recaller import Recaller
from muniment.store.injected import HookSession
from muniment.store.state import State
from muniment.types import Recalled
from muniment.types.keys import EntryKey, RootKey

HOOK_SECONDS: Final = 4.0
"""Seconds after which a hook answers in every case.

With the start of the program, this is less than 5 seconds.
"""

MAX_EVENT_BYTES: Final = 4 << 20
"""Maximum bytes of an event."""

MAX_HOOK_TOKENS: Final = 3_300
"""Maximum tokens of the text that a hook injects, even if the user sets a larger budget: 9 900 bytes.

Claude Code and Cursor accept 10 000 characters, and Codex truncates a longer text (docs/setup.md links to
their pages).
"""

_START_EVENT: Final = re.compile(r"session_?start", re.IGNORECASE)
_SUBAGENT_EVENT: Final = re.compile(r"subagent_?start", re.IGNORECASE)
_COMPACTION_EVENT: Final = re.compile(r"(?:pre|post)_?comp(?:act|ress)", re.IGNORECASE)
"""Match the names of events in the spelling of any tool."""

_PROMPT_MEMBERS: Final = ("submitted_prompt", "prompt")
"""The members of an event that may contain the user's text.

The first is preferred, because the `prompt` of Qwen Code may contain text that the tool added.
"""

_SESSION_MEMBERS: Final = ("session_id", "conversation_id")
"""The members of an event that may contain the id of its conversation; Cursor uses the second."""

_STANDING_KEY: Final = EntryKey(RootKey(""), RelPath("standing"), digest(b"standing"))
"""The key in the record of a session that has received the standing context, which may have no entries."""


class HookOptions(NamedTuple):
    """The limits of a recall, the ids to exclude, and the only scope to search (None: all scopes)."""

    limit: int = 5
    budget: int = 2_000
    exclude: Sequence[str] = ()
    scope: str | None = None


class HookMemory(NamedTuple):
    """The memory that answers events.

    Attributes:
        context: the memory; a session receives its `advice` once.
        recaller: searches the memory.
    """

    context: JobContext
    recaller: Recaller


class HookAnswer(NamedTuple):
    """The answer to an event.

    Attributes:
        response: the JSON object for the tool.
        record: writes to the ledger what the session received; call it only after the tool has the response.
    """

    response: dict[str, Any]
    record: Callable[[], None]


def search_memory(
    recaller: Recaller,
    query: str,
    options: HookOptions,
    deadline: Deadline,
    injected: Collection[EntryKey] = (),
    *,
    needs_entry: bool = True,
) -> Recalled:
    """Return the entries that help with a query; after an error, an empty result that contains the error.

    Args:
        recaller: searches the memory.
        query: a message, or words to search for.
        options: the limits, the ids to exclude, and the scope.
        deadline: the time limit.
        injected: further versions of entries to exclude.
        needs_entry: whether a budget without room for one entry is an error.
    """
    return recaller.recall(
        query,
        exclude={*recaller.read_keys(options.exclude), *injected},
        scopes=None if options.scope is None else [options.scope],
        limit=options.limit,
        budget=options.budget,
        deadline=deadline,
        needs_entry=needs_entry,
    )


def parse_event(data: bytes) -> dict[str, Any]:
    """Return the event of a coding tool.

    Raises:
        ConfigInvalid: the data is not a JSON object.
    """
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise ConfigInvalid("invalid event on standard input: not JSON; use a JSON object") from None
    if not isinstance(event, dict):
        raise ConfigInvalid('invalid event on standard input: expected an object with a string "prompt"')
    return event


def answer_event(
    event: dict[str, Any], memory: HookMemory, options: HookOptions, deadline: Deadline
) -> HookAnswer:
    """Return the answer to an event of a coding tool.

    Args:
        event: the event; any JSON object.
        memory: the memory.
        options: the limits of the recall for a prompt.
        deadline: the time limit.

    Raises:
        ConfigInvalid: the event has no prompt and is not one of the events in the module docstring.
        MunimentError: the memory cannot be read.
    """
    return _EventAnswerer(event, memory, options, deadline).answer()


class _EventAnswerer:
    """Answers one event."""

    def __init__(
        self, event: dict[str, Any], memory: HookMemory, options: HookOptions, deadline: Deadline
    ) -> None:
        self._event, self._memory, self._options, self._deadline = event, memory, options, deadline
        self._session = _find_session(event, memory.context.state)
        self._injected: list[EntryKey] = []
        self._recalled: list[Recalled] = []

    def answer(self) -> HookAnswer:
        """Return the answer to the event."""
        name = self._event.get("hook_event_name")
        name = name if isinstance(name, str) else ""
        prompt = _find_first_text(self._event, _PROMPT_MEMBERS)
        if _COMPACTION_EVENT.fullmatch(name):
            parts = [self._handle_compaction()]
        elif _START_EVENT.fullmatch(name):
            parts = [self._handle_start()]
        elif _SUBAGENT_EVENT.fullmatch(name):
            parts = [self._take_standing()]
        elif prompt is not None:
            parts = self._handle_prompt(prompt)
        else:
            raise ConfigInvalid('invalid event on standard input: expected an object with a string "prompt"')
        text = "\n".join(filter(None, parts))
        return HookAnswer(_build_response(text, self._event), self._record)

    def _handle_compaction(self) -> str:
        if self._session is not None and not (_is_gemini_event(self._event) and self._has("trigger", "auto")):
            self._session.clear()
        return ""

    def _handle_start(self) -> str:
        """Return the text for a session that starts, or continues after a compaction or a pause."""
        is_resumed = self._has("source", "resume")
        if self._session is not None and not is_resumed:
            self._session.clear()
        if _is_gemini_event(self._event):
            return ""
        return self._take_standing(repeats=is_resumed and _is_qwen_event(self._event))

    def _handle_prompt(self, prompt: str) -> list[str]:
        """Return the texts for a prompt; Qwen Code sends an empty one with the results of tools."""
        if not prompt.strip():
            return []
        standing = self._take_standing() if self._session is not None else ""
        notes = self._take_notes()
        return [standing, self._recall(prompt, [standing, notes]), notes]

    def _has(self, member: str, value: str) -> bool:
        return self._event.get(member) == value

    def _read_injected(self) -> Collection[EntryKey]:
        """Return the keys in the record of the session."""
        if self._session is None:
            return ()
        return self._session.read_injected(datetime.now(UTC), self._deadline)

    def _take_standing(self, *, repeats: bool = False) -> str:
        """Return the standing context if the session has not received it, and mark it as injected.

        Args:
            repeats: return it in every case, and completely.
        """
        from muniment.recall.standing import read_standing

        tokens = self._memory.context.standing_tokens
        injected = () if repeats else self._read_injected()
        if tokens < 1 or _STANDING_KEY in injected:
            return ""
        standing = read_standing(
            self._memory.recaller, min(tokens, MAX_HOOK_TOKENS), self._deadline, injected
        )
        if standing.error is not None:
            raise standing.error
        self._injected += [_STANDING_KEY, *standing.keys]
        self._recalled.append(standing)
        return standing.text

    def _take_notes(self) -> str:
        """Return the notices that the session has not received, and mark them as injected."""
        keys = [
            EntryKey(RootKey(""), RelPath("note"), digest(each.encode()))
            for each in self._memory.context.advice
        ]
        if set(keys) <= set(self._read_injected()):
            return ""
        self._injected += keys
        return "\n".join(f"note: {clean_foreign_line(each)}" for each in self._memory.context.advice)

    def _recall(self, prompt: str, before: Sequence[str]) -> str:
        """Return the entries that help with a prompt, without those that the session has.

        Args:
            prompt: the user's text.
            before: the other texts of the answer, which use a part of the tokens.
        """
        recaller, options = self._memory.recaller, self._options
        remaining = MAX_HOOK_TOKENS - recaller.count("\n".join(filter(None, before)))
        limited = options._replace(budget=min(options.budget, remaining))
        has = {*self._read_injected(), *self._injected}
        recalled = search_memory(
            recaller, prompt, limited, self._deadline, has, needs_entry=options.budget <= remaining
        )
        if recalled.error is not None:
            raise recalled.error
        self._injected += recalled.keys
        self._recalled.append(recalled)
        return recalled.text

    def _record(self) -> None:
        """Write to the ledger what the session received.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written.
        """
        if self._session is not None and self._injected:
            self._session.record_injected(self._injected, datetime.now(UTC))
        for each in self._recalled:
            if each.entries:
                self._memory.recaller.record(each, "hook")


def _find_session(event: dict[str, Any], state: State) -> HookSession | None:
    """Return the record of the conversation of an event; None if the event has no id.

    A subagent has its own record: Codex sends its prompts with the id of the parent's session.
    """
    session, agent = _find_first_text(event, _SESSION_MEMBERS), event.get("agent_id")
    if not session:
        return None
    return HookSession(state, json.dumps([session, agent]) if isinstance(agent, str) and agent else session)


def _find_first_text(event: dict[str, Any], names: tuple[str, ...]) -> str | None:
    """Return the first of the members `names` whose value is a string; None: not found."""
    return next((text for name in names if isinstance(text := event.get(name), str)), None)


def find_workspace(event: dict[str, Any]) -> Path | None:
    """Return the workspace that an event of Cursor names; None: the directory of the hook is the workspace.

    Cursor may start the hook in any directory.
    """
    match event.get("workspace_roots"):
        case [str(root), *_] if _is_cursor_event(event):
            return Path(root)
        case _:
            return None


def _is_cursor_event(event: dict[str, Any]) -> bool:
    return "cursor_version" in event or "conversation_id" in event


def _is_qwen_event(event: dict[str, Any]) -> bool:
    return "timestamp" in event and "permission_mode" in event


def _is_gemini_event(event: dict[str, Any]) -> bool:
    return "timestamp" in event and "permission_mode" not in event


def _build_response(text: str, event: dict[str, Any]) -> dict[str, Any]:
    """Return the response for the tool of an event, with only the members that this tool accepts.

    For an empty text, the response is `{}`. Codex rejects unknown members, and turns an empty text into a
    message. Claude Code rejects `hookSpecificOutput` for events that accept no context. Gemini CLI reads
    standard error if the output is empty.

    Args:
        text: the text to inject.
        event: the event of the tool.
    """
    name = event.get("hook_event_name")
    if not text:
        return {}
    if not isinstance(name, str):
        return {"additionalContext": text}
    if _is_cursor_event(event):
        return {"continue": True, "additional_context": text}
    return {"hookSpecificOutput": {"hookEventName": name, "additionalContext": text}}
