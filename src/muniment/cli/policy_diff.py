"""`muniment policy diff`: whether a new policy is wider than an old one, and where.

A widening that people agreed on stands in a file, such as `policies/WIDENINGS.md`, as a heading with the name
and the digests before and after. An entry is for this one change: any further edit has another digest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from muniment.cli.named_file import read_named
from muniment.cli.policy_review import load_for_review, place_of
from muniment.cli.report import EXIT_FAILED, coloured, configure_logging, print_document, print_failure, say
from muniment.errors import MunimentError
from muniment.policy.diff import Cause, Difference, Gain
from muniment.policy.diff import diff as difference_of
from muniment.policy.load import Loaded

DIGEST_CHARS: Final = 32
"""Characters of a digest in an entry: 128 bits, so that nobody finds another policy to fit it."""

MAX_ACCEPTED_BYTES: Final = 1 << 20
"""Bytes of a file of accepted widenings."""


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
    return {match[1] for match in re.finditer(r"^## (\S+ \S+ → \S+)[ \t\r]*$", text, re.MULTILINE)}


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
        say(coloured(f"            {_reason(gain.cause, before, after)}", "red"))
    for why in found.undecided:
        say(coloured(f"  undecided {why}", "red"))
    for gain in found.narrowings:
        say(coloured(f"  narrower  {', '.join(gain.acts)}  {gain.path}", "green"))
        say(coloured(f"            {_reason(gain.cause, after, before)}", "dim"))
    for term in found.terms:
        said = f"  {'LOOSER  ' if term.is_looser else 'stricter'}  {term.name}: {term.old} → {term.new}"
        say(coloured(said, "red" if term.is_looser else "green"))


def _reason(cause: Cause, less: Loaded, more: Loaded) -> str:
    """What makes the difference: `less` does not grant what `more` does."""
    if cause.kind == "deny":
        at = place_of(less.files, cause.layer, "deny", cause.rule, cause.pattern)
        return f"the deny rule {cause.rule!r}, pattern {cause.pattern!r} ({at}), is there no longer"
    if cause.kind == "scope":
        return f"only one of them declares the scope {cause.rule!r}"
    if cause.kind == "layer":
        return f"the file {cause.layer!r}, which does not grant it, is part of one of them only"
    at = place_of(more.files, cause.layer, "allow", cause.rule, cause.pattern)
    return f"the allow rule {cause.rule!r}, pattern {cause.pattern!r} ({at}), grants it"


def _say_acceptance(before: Loaded, after: Loaded, accepted: Path | None, *, is_accepted: bool) -> None:
    if is_accepted:
        say(coloured(f"accepted in {accepted}", "yellow"))
        return
    where = accepted or "a file that you name with --accepted"
    say(f"to accept it, add to {where}, with who agreed and why:")
    say(f"## {entry_for(before, after)}")


def _document(before: Loaded, after: Loaded, found: Difference, *, is_accepted: bool) -> dict[str, Any]:
    return {
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
    shown = []
    for gain in gains:
        holder, kind = (less, "deny") if gain.cause.kind == "deny" else (more, "allow")
        at = place_of(holder.files, gain.cause.layer, kind, gain.cause.rule, gain.cause.pattern)
        shown.append({**asdict(gain), "at": at or None})
    return shown
