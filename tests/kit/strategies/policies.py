"""Policy files after human errors or a bad merge: valid ones, and valid ones with mistakes.

`policies` draws texts in the format `muniment-policy/1` that load. `near_policies` adds mistakes: a
character, another word of the schema, a value, a missing or repeated line. Its texts may load or not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from hypothesis import strategies as st

SCOPE_NAMES: Final = ("user", "project", "team")
VERBS: Final = ("list", "read", "create", "modify", "delete")
ALLOWED: Final = (
    "**",
    "*.md",
    "*/*.md",
    "**/*.md",
    "a.md",
    "t/**",
    "a?.md",
    "日本/*.md",
    "t/*/b.md",
    "straße.md",
)
DENIED: Final = (
    ".*",
    "pinned/",
    "MEMORY.md",
    "/*/index/",
    "a.md",
    "A*",
    "/user/t/",
    "**/t/",
    "?.md",
    "*.txt",
    "日*",
    "ß.md",
)
GATES: Final = ("control", "bidi", "tag-chars", "zero-width", "ansi", "active-markup")

WORDS: Final = (
    *("schema", "name", "description", "extends", "scopes", "allow", "deny", "quota", "test", "id"),
    *("verbs", "paths"),
    *("why", "confinement", "require", "on_escape", "limits", "turns", "seconds", "files_written"),
    "max_files",
    *("max_file_bytes", "changes", "conflict", "content", "reject", "verb", "path", "expect", "trust"),
    "commit",
    *("user", "project", "owner", "workspace", "external", "full", "partial", "none", "abort", "refuse"),
    "fail",
    *(
        "retry",
        "auto",
        "review",
        "strict",
        "provenance",
        "retention",
        "secrets",
        "instructions",
        "poison",
        "redact",
    ),
    *("quarantine", "untrusted_sources", "untrusted", "default", "never", "max_forget", "max_scope_share"),
    *("request", *VERBS, *GATES),
)
"""Words of the schema."""

POLICY_VALUES: Final = (
    *("1", "0", "-1", "7", "1_000_000", "4_294_967_297", "9" * 5_000, "1.5", "nan", "true", '""', '"*"'),
    *("0.2", "inf", '"never"', '"14"', '"redact"', '"quarantine"', '"reject"', '"allow"'),
    *('["*"]', "[]"),
    *('["read", "*"]', '["/**"]', '["**"]', '["/"]', '["a["]', '["!a"]', '["/../x"]', '[""]'),
    *('["a\\u0000"]', "[1]"),
    *("{}", "{ a = 1 }", "[[]]", "[[[", "1979-05-27", "'x'", '"""x"""', '"strict"', '["strict"]'),
    *('["own"]', '"\\ud800"'),
)
"""Values, TOML or not, for any key."""

HEAD_LINES: Final = (
    *('extends = ["strict"]', 'extends = ["own"]', 'extends = ["../x"]', 'name = "twice"'),
    'schema = "muniment-policy/2"',
    *("x = 1", "allow = 1", "scope = {}", "retention = 1", "description = 1", "deny = [1]"),
)
"""Lines for the top of a file, each wrong there."""

TABLES: Final = (
    '[[allow]]\nid = "deny-0"\nverbs = ["read"]\npaths = ["/**"]',
    '[[deny]]\nid = "deny-0"\nverbs = ["*"]\npaths = ["x"]',
    '[[deny]]\nid = "silent"\nverbs = ["*"]\npaths = ["con"]',
    '[[deny]]\nid = "elsewhere"\nverbs = ["*"]\npaths = ["/nowhere/x"]',
    '[[allow]]\nid = "loose"\nverbs = ["read"]\npaths = ["*.md"]',
    '[[allow]]\nid = "stars"\nverbs = ["read"]\npaths = ["/*/**/**/**/a"]',
    '[[allow]]\nid = "all"\nverbs = ["*"]\npaths = ["/**"]',
    '[[allow]]\nid = "empty"\nverbs = []\npaths = ["/**"]',
    '[[quota]]\nid = "none"\npaths = ["/**"]\nmax_files = 0',
    "[limits]\nturns = 7\nseconds = 296",
    "[content]\nreject = false",
    '[[test]]\nverb = "read"\npath = "user/../a.md"\nexpect = "allow"',
)
"""Tables for the end of a file, each wrong by itself or in combination."""

_LETTERS: Final = "abdeilnoprstuvwy_-.\"'[]{}=#,*/ \n\t\r\0\ufeff\u202eé0"


@st.composite
def policies(draw: st.DrawFn) -> str:
    """Draw a policy that loads, named `own`, with at least the scope `user`."""
    scopes = ["user", *draw(st.lists(st.sampled_from(SCOPE_NAMES[1:]), unique=True))]
    head = ['schema = "muniment-policy/1"', 'name = "own"', "[scopes]"]
    trusts = st.sampled_from(["owner", "workspace", "agent", "external"])
    head += [f'{scope} = {{ trust = "{draw(trusts)}" }}' for scope in scopes]
    within = st.builds("/{}/{}".format, st.sampled_from([*scopes, "*"]), st.sampled_from(ALLOWED))
    tables = draw(_rules("allow", st.sampled_from(VERBS), within | st.just("/**")))
    tables += draw(_rules("deny", st.sampled_from([*VERBS, "*"]), st.sampled_from(DENIED)))
    return "\n".join([*head, *draw(st.permutations(tables + draw(_terms()))), ""])


def near_policies(sources: Sequence[str] = ()) -> st.SearchStrategy[str]:
    """Return policies with one to three mistakes.

    Args:
        sources: base policies, such as those in use; `policies()` if empty.
    """
    good = st.sampled_from(list(sources)) if sources else policies()
    return good.flatmap(_slipped)


def _rules(
    kind: str, verbs: st.SearchStrategy[str], paths: st.SearchStrategy[str]
) -> st.SearchStrategy[list[str]]:
    rule = st.tuples(st.lists(verbs, min_size=1, max_size=3), st.lists(paths, min_size=1, max_size=3))
    return st.lists(rule, max_size=3).map(
        lambda rules: [
            f'[[{kind}]]\nid = "{kind}-{number}"\nverbs = {_toml(verbs)}\npaths = {_toml(paths)}'
            for number, (verbs, paths) in enumerate(rules)
        ]
    )


@st.composite
def _terms(draw: st.DrawFn) -> list[str]:
    """Draw the other tables of a policy; each may be missing."""
    require, escape = draw(st.sampled_from(["full", "partial", "none"])), draw(_escapes)
    tables = [
        f'[confinement]\nrequire = "{require}"\non_escape = "{escape}"',
        f"[limits]\nturns = {draw(st.integers(1, 6))}\nwrite_bytes = {draw(st.integers(1, 2**32))}",
        f'[[quota]]\nid = "q"\npaths = ["/**"]\nmax_files = {draw(st.integers(1, 1_000_000))}',
        f'[changes]\nconflict = "{draw(st.sampled_from(["retry", "fail"]))}"',
        f"[changes]\nmax_forget = {draw(st.integers(1, 99))}\nmax_scope_share = {draw(_shares)}",
        f"[content]\nreject = {_toml(draw(st.lists(st.sampled_from(GATES))))}",
        f'[content]\nsecrets = "{draw(_secrets)}"\ninstructions = "{draw(_waits)}"',
        f'[content]\npoison = "{draw(_waits)}"',
        f'[provenance]\nuntrusted_sources = "{draw(_sources)}"',
        f"[retention]\ndefault = {draw(_days)}\nuntrusted = {draw(_days)}",
    ]
    chosen = [table for table in tables if draw(st.booleans())]
    # TOML rejects repeated tables: of two with one name the later is dropped.
    return [
        table
        for number, table in enumerate(chosen)
        if table.startswith("[[")
        or not any(other.startswith(table.split("\n")[0]) for other in chosen[:number])
    ]


_escapes = st.sampled_from(["abort", "refuse"])
_shares = st.sampled_from([0.01, 0.2, 1])
_secrets = st.sampled_from(["reject", "redact"])
_waits = st.sampled_from(["allow", "quarantine"])
_sources = st.sampled_from(["allow", "quarantine", "reject"])
_days = st.sampled_from(['"never"', 1, 14, 36_500])
_slips = st.lists(
    st.sampled_from(["character", "word", "value", "line", "place", "place", "whole"]), min_size=1, max_size=2
)


@st.composite
def _slipped(draw: st.DrawFn, text: str) -> str:
    for slip in draw(_slips):
        if slip == "character":
            text = _with_slip(draw, text)
        elif slip == "word":
            text = _with_other(draw, text, r"[a-z_-]{2,}", WORDS)
        elif slip == "value":
            text = _with_other(draw, text, r"(?<== ).+|(?<=\[)[^\[\]]+(?=\])", POLICY_VALUES)
        elif slip == "line":
            text = _with_line(draw, text)
        elif slip == "place":
            text = draw(_placed(text))
        else:
            text = draw(_whole(text))
    return text


def _placed(text: str) -> st.SearchStrategy[str]:
    """Return the text with a wrong line at the top, a wrong table at the end, or a missing table."""
    lost = st.sampled_from(re.findall(r"^\[.*\n(?:[^\[].*\n)*", text, re.MULTILINE) or [""])
    wrong = [f"{text}\n{table}\n" for table in TABLES] + [f"{line}\n{text}" for line in HEAD_LINES]
    return st.sampled_from(wrong) | lost.map(lambda table: text.replace(table, "", 1))


def _whole(text: str) -> st.SearchStrategy[str]:
    """Return the complete text in another encoding, doubled, or truncated."""
    crlf, cr = text.replace("\n", "\r\n"), text.replace("\n", "\r")
    cut = st.integers(0, len(text)).map(lambda end: text[:end])
    return st.sampled_from([crlf, "\ufeff" + text, cr, text + text]) | cut


def _with_slip(draw: st.DrawFn, text: str) -> str:
    """Delete, repeat, replace or swap a character."""
    at = draw(st.integers(0, max(0, len(text) - 1)))
    before, here, after, rest = text[:at], text[at : at + 1], text[at + 1 : at + 2], text[at + 2 :]
    other: str = draw(st.sampled_from(_LETTERS))
    return before + draw(st.sampled_from([after, here * 2 + after, after + here, other + after])) + rest


def _with_other(draw: st.DrawFn, text: str, pattern: str, others: Sequence[str]) -> str:
    """Replace one match of `pattern` by one of `others`."""
    found = list(re.finditer(pattern, text))
    if not found:
        return text
    match = draw(st.sampled_from(found))
    other = draw(st.sampled_from(list(others)))
    return f"{text[: match.start()]}{other}{text[match.end() :]}"


def _with_line(draw: st.DrawFn, text: str) -> str:
    """Delete, repeat, comment out, move or extend a line."""
    lines = text.split("\n")
    at = draw(st.integers(0, len(lines) - 1))
    line = lines.pop(at)
    word = draw(st.sampled_from(WORDS))
    more = f"{word} = {draw(st.sampled_from(POLICY_VALUES))}"
    put = draw(st.sampled_from([[], [line, line], [f"#{line}"], [line, more], [line, f"[{word}]"], None]))
    if put is None:
        put, at = [line], draw(st.integers(0, len(lines)))
    return "\n".join([*lines[:at], *put, *lines[at:]])


def _toml(texts: Sequence[str]) -> str:
    return json.dumps(list(texts), ensure_ascii=False)
