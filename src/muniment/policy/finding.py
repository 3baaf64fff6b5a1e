"""A finding of `lint`: what is wrong, on which line, and what to write instead."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from muniment.errors import PolicyInvalid
from muniment.policy.normal import normalised

_FIXES: Final = {
    "E100": "name a policy file that you may read",
    "E101": "correct or remove the key; policies/policy.schema.json lists every one",
    "E102": "correct the TOML there",
    "E103": "add the key",
    "E104": "write one of the values that are possible",
    "E105": 'write schema = "muniment-policy/1"',
    "E107": "give one of the two another id",
    "E108": "name at least one, or remove the table",
    "E109": "name verbs out of list, read, create, modify, delete; * in deny rules only",
    "E110": "choose a number within the bounds",
    "E111": "use another name, of a-z, 0-9, - and _",
    "E120": "create that policy, or correct the name",
    "E121": "remove the entry of `extends` that leads back",
    "E122": "extend fewer generations of policies",
    "E123": "let the file and what is said about it use one name",
    "E124": "rename one of the two",
    "E125": "declare a scope in [scopes]",
    "E127": "write the path from the folder of this file",
    "E130": "look at what changed there, then run: muniment policy lock FOLDER",
    "E131": "look at that file, then run: muniment policy lock FOLDER",
    "E132": "look at the policies there, then run: muniment policy lock FOLDER",
    "E201": "remove the pattern, or correct the name in it",
    "E202": "use fewer wildcards, or several patterns",
    "E203": "write the pattern with literals, *, ? and ** only",
    "E205": "begin the pattern with / and a scope",
    "E206": "declare the scope or correct its name; for every scope, write /**/ in front, or one name alone",
    "E401": "correct the rule, or what the test expects",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to look at.

    Attributes:
        code: of the list above; `E` makes a file unfit, `W` and `I` do not.
        where: the file, and the key or rule in it.
        line: in that file; None if nobody can tell.
        problem: what is wrong.
        fix: what to do about it.
    """

    code: str
    where: str
    line: int | None
    problem: str
    fix: str

    @property
    def is_error(self) -> bool:
        """Whether the file is unfit."""
        return self.code.startswith("E")


def as_findings(problems: Iterable[PolicyInvalid]) -> list[Finding]:
    """What does not load, with a fix each."""
    return in_order(
        [Finding(each.rule, each.where, each.line, each.problem, _fix(each)) for each in problems]
    )


def in_order(findings: list[Finding]) -> list[Finding]:
    """Errors first, then in the order of lines."""
    return sorted(findings, key=lambda each: ("EWI".index(each.code[0]), each.line or 0, each.code))


def _fix(problem: PolicyInvalid) -> str:
    """What to write instead: the very text where it can be known."""
    if meant := re.search(r"did you mean ('[^']+')\?", problem.problem):
        return f"write {meant[1]}"
    if remedy := re.search(r"; run: (.+)$", problem.problem):
        return f"run: {remedy[1]}"
    if quoted := re.match(r"pattern ('(?:[^'\\]|\\.)*'|\"[^\"]*\") ", problem.problem):
        pattern: str = literal_eval(quoted[1])
        corrected = normalised("NFKC", pattern).strip()
        if problem.rule == "E205" and "/" not in pattern:
            return f"write {'/**/' + pattern!r}, or begin with one scope instead of **"
        if problem.rule == "E205":
            return f"write {'/' + pattern!r}"
        is_of_form = any(each in problem.problem[quoted.end() :] for each in ("white space", "NFKC"))
        if is_of_form and corrected not in {pattern, ""} and corrected.isprintable():
            return f"write {corrected!r}"
    return _FIXES.get(problem.rule, "correct what is said there")
