"""Tool calls of a model: correct argument names with hostile values.

A call is a pair (tool, arguments), as `Sandbox.call` accepts them; a driver of another tool translates it.
"""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

from kit.strategies.entries import entry_texts
from kit.strategies.hostile_paths import unsafe_paths

Call = tuple[object, object]
"""Name of the tool, arguments."""

TOOLS: Final = ("read_file", "ls", "grep", "write_file", "edit")

PATTERNS: Final = (
    *("", ".", "a", "text", "^", "(?i)canary", "[", "(", "a{1000}", "(a+)+$", "\\", "(?P<x>a)\\1", "\\pL"),
    *("\\C", "\0"),
    *("x" * 1001, "(?s).*", "\ud800", "\\Q", "(?-u)\\xff"),
)

CONTENTS: Final = (
    *("text\n", "", "---\nname: a\ntype: user\n---\nb\n", "a\r\nb", "\ufefftext", "\u202etext", "a\u200bb"),
    "\x1b[2J",
    *("\0", "\ud800", "\U000e0041", '---\nname: "\\u202e"\n---\n'),
)

LONG_CONTENTS: Final = (("x", 140_000), ("é", 600_000))
"""Text and repetitions: above the usual quota of a file, and above the maximum size of any file. Separate,
because Hypothesis prints the strategies of a state machine.
"""

PIECES: Final = ("text", "a", "\n", "---", "name", "x", "", " ", "texttext", "é", "\0", "\u202e", "\ud800")
"""Texts to replace and replacements: short, so that they occur."""

_NUMBERS: Final = (0, 1, 2, 400, -1, 10**30, True, None, "1", 1.0, 2.5)


def tool_calls(paths: st.SearchStrategy[str] | None = None) -> st.SearchStrategy[Call]:
    """Return calls of the five tools with correct argument names; the values may be invalid.

    Args:
        paths: of the calls; `unsafe_paths()` by default.
    """
    path = unsafe_paths() if paths is None else paths
    long = st.sampled_from(LONG_CONTENTS).map(lambda each: each[0] * each[1])
    content = st.one_of(st.sampled_from(CONTENTS), entry_texts(), entry_texts(), long)
    piece = st.sampled_from(PIECES)
    number = st.sampled_from(_NUMBERS)
    return st.one_of(
        _call("read_file", {"path": path}, {"offset": number, "limit": number}),
        _call("ls", {"path": path | st.just("")}),
        _call("write_file", {"path": path, "content": content}),
        _call(
            "edit", {"path": path, "old_string": piece, "new_string": piece}, {"replace_all": st.booleans()}
        ),
        _call(
            "grep",
            {"pattern": st.sampled_from(PATTERNS)},
            {"path": path | st.just(""), "ignore_case": st.booleans(), "max_matches": number},
        ),
    )


def _call(
    tool: str,
    needed: dict[str, st.SearchStrategy[Any]],
    others: dict[str, st.SearchStrategy[Any]] | None = None,
) -> st.SearchStrategy[Call]:
    return st.tuples(st.just(tool), st.fixed_dictionaries(needed, optional=others or {}))
