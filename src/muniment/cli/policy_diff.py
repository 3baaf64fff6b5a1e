"""`muniment policy diff`: whether a new policy is wider than an old one, and where.

A widening that people agreed on stands in a file, such as `policies/WIDENINGS.md`, as a heading with the name
and the digests before and after. An entry is for this one change: any further edit has another digest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from muniment.cli.named_file import read_named
from muniment.cli.policy_review import load_for_review, place_of
from muniment.cli.report import EXIT_FAILED, coloured, configure_logging, print_document, print_failure, say
from muniment.errors import MunimentError
from muniment.lab.proofs import Cause, Difference, Gain
from muniment.lab.proofs import diff as difference_of
from muniment.policy.load import Loaded
from muniment.policy.tables import line_of

DIGEST_CHARS: Final = 32
"""Characters of a digest in an entry: 128 bits, so that nobody finds another policy to fit it."""

MAX_ACCEPTED_BYTES: Final = 1 << 20
"""Bytes of a file of accepted widenings."""

_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_COMMENT: Final = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
"""Of Markdown, as CommonMark has it; what is never closed goes to the end."""


def diff(old: str, new: str, accepted: Path | None, *, as_json: bool) -> int:
    """Compare two policies; 0 only if the new one is proved to be no wider, or its widening is accepted."""
    configure_logging()
    try:
        before, after = load_for_review(old), load_for_review(new)
        entries = read_named(accepted, MAX_ACCEPTED_BYTES).decode(errors="replace") if accepted else ""
        found = difference_of(before.policy, after.policy)
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what="not compared")
    is_accepted = found.verdict != "proved" and entry_for(before, after) in _entries(entries)
    if as_json:
        print_document(_document(before, after, found, is_accepted=is_accepted))
    else:
        _say(before, after, found)
        if found.verdict != "proved":
            _say_acceptance(before, after, accepted, is_accepted=is_accepted)
    return 0 if found.verdict == "proved" or is_accepted else EXIT_FAILED


def entry_for(before: Loaded, after: Loaded) -> str:
    """The heading under which this widening is accepted."""
    old, new = (each.policy.digest[:DIGEST_CHARS] for each in (before, after))
    return f"{after.policy.name} {old} → {new}"


def _entries(text: str) -> set[str]:
    """What stands in headings of the second level; a heading in a block of code, or in a comment, is none."""
    found = (re.fullmatch(r"## (\S+ \S+ → \S+)[ \t\r]*", line) for line in _prose(text))
    return {match[1] for match in found if match}


def _prose(text: str) -> Iterator[str]:
    """The lines of a Markdown text that stand in no fenced block and in no comment."""
    fence: str | None = None
    for line in _COMMENT.sub("", text).split("\n"):
        marks = _FENCE.match(line)
        if fence is not None:
            is_end = marks is not None and marks[1].startswith(fence) and line.strip() == marks[1]
            fence = None if is_end else fence
        elif marks is not None:
            fence = marks[1]
        else:
            yield line


def _say(before: Loaded, after: Loaded, found: Difference) -> None:
    old, new = before.policy.label, after.policy.label
    if found.verdict == "proved":
        say(coloured(f"proved: {new} grants nothing that {old} does not", "green"))
    elif found.verdict == "wider":
        say(coloured(f"WIDER: {new} grants what {old} does not", "red"))
    else:
        say(coloured(f"UNDECIDED, which counts as wider: {new} against {old}", "red"))
    for gain in found.widenings:
        say(coloured(f"  wider     {', '.join(gain.acts)}  {gain.path}", "red"))
        say(coloured(f"            {_reason(gain.cause, before, after, wider=True)}", "red"))
    for why in found.undecided:
        say(coloured(f"  undecided {why}", "red"))
    for gain in found.narrowings:
        say(coloured(f"  narrower  {', '.join(gain.acts)}  {gain.path}", "green"))
        say(coloured(f"            {_reason(gain.cause, after, before, wider=False)}", "dim"))
    for term in found.terms:
        said = f"  {'LOOSER  ' if term.is_looser else 'stricter'}  {term.name}: {term.old} → {term.new}"
        say(coloured(said, "red" if term.is_looser else "green"))


def _reason(cause: Cause, less: Loaded, more: Loaded, *, wider: bool) -> str:
    """What makes the difference: `less` does not grant what `more` does; `wider` if `more` is the new one."""
    if cause.kind == "scope":
        told = "is declared now" if wider else "is declared no longer"
        return f"the scope {cause.rule!r} ({_at(cause, less, more)}) {told}"
    if cause.kind == "layer":
        told = "is part of the policy no longer" if wider else "is part of the policy now"
        at = _at(cause, less, more)
        return f"the file {cause.layer!r}{'' if at == cause.layer else f' ({at})'}, which denies it, {told}"
    named = f"the {cause.kind} rule {cause.rule!r}, pattern {cause.pattern!r} ({_at(cause, less, more)}),"
    if cause.kind == "deny":
        return f"{named} {'no longer denies it' if wider else 'denies it now'}"
    return f"{named} {'grants it now' if wider else 'no longer grants it'}"


def _at(cause: Cause, less: Loaded, more: Loaded) -> str:
    """Where the rule or the scope stands, with its line; of a whole file, the file."""
    if cause.kind == "scope":
        file = next(each for each in more.files if cause.rule in (each.tables.scopes or ()))
        line = line_of(file.text, "scopes", None, cause.rule)
        return f"{file.where}:{line}" if line else file.where
    holder = more if cause.kind == "allow" else less
    return place_of(holder.files, cause.layer, cause.kind, cause.rule, cause.pattern)


def _say_acceptance(before: Loaded, after: Loaded, accepted: Path | None, *, is_accepted: bool) -> None:
    if is_accepted:
        say(coloured(f"accepted in {accepted}", "yellow"))
        return
    where = accepted or "a file that you name with --accepted"
    say(coloured(f"to accept it, add to {where}, with who agreed and why:", "yellow"))
    say(f"## {entry_for(before, after)}")


def _document(before: Loaded, after: Loaded, found: Difference, *, is_accepted: bool) -> dict[str, Any]:
    return {
        "status": "compared",
        "verdict": found.verdict,
        "accepted": is_accepted,
        "entry": entry_for(before, after),
        "old": {"name": before.policy.name, "digest": before.policy.digest},
        "new": {"name": after.policy.name, "digest": after.policy.digest},
        "widenings": _gains(found.widenings, before, after),
        "narrowings": _gains(found.narrowings, after, before),
        "terms": [asdict(term) for term in found.terms],
        "undecided": list(found.undecided),
    }


def _gains(gains: Sequence[Gain], less: Loaded, more: Loaded) -> list[dict[str, Any]]:
    return [{**asdict(gain), "at": _at(gain.cause, less, more)} for gain in gains]
