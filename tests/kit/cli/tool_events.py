"""The events that the hooks of coding tools send, and the text in the answers.

docs/setup.md names the pages of the tools; the first four tools were also run.
"""

from __future__ import annotations

_GEMINI = {"transcript_path": "/t", "cwd": "/", "timestamp": "2026-11-26T00:00:00Z"}
_MEMBERS = {
    "claude-code": {"transcript_path": "/t", "cwd": "/", "permission_mode": "default", "prompt_id": "p"},
    "codex": {
        "transcript_path": None,
        "cwd": "/",
        "permission_mode": "default",
        "model": "m",
        "turn_id": "1",
    },
    "qwen-code": {**_GEMINI, "permission_mode": "default", "model": "m"},
    "gemini-cli": _GEMINI,
    "cursor": {"generation_id": "g", "cursor_version": "3.20.17"},
}
TOOLS = tuple(_MEMBERS)
_SPELLINGS = {
    "gemini-cli": {"prompt": "BeforeAgent"},
    "cursor": {"start": "sessionStart", "prompt": "beforeSubmitPrompt"},
}
_EVENT_NAMES = {"start": "SessionStart", "prompt": "UserPromptSubmit"}


def get_event_name(tool, event):
    """Return the name of an event in the spelling of a tool; `event` is `start`, `prompt`, or this name."""
    return (_EVENT_NAMES | _SPELLINGS.get(tool, {})).get(event, event)


def make_event(tool, event, *, session="s", **members):
    """Return an event of a session of a tool; see `get_event_name`."""
    session_member = "conversation_id" if tool == "cursor" else "session_id"
    name = get_event_name(tool, event)
    return {session_member: session, **_MEMBERS[tool], "hook_event_name": name, **members}


def get_injected_text(answer):
    """Return the text that an answer injects, in the format of any tool; "" if there is none."""
    answer = answer.get("hookSpecificOutput", answer)
    return answer.get("additionalContext", answer.get("additional_context", ""))
