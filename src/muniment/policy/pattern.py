r"""The dialect of `paths` in a policy, and its two matchers: exact files for allow, trees for deny.

The dialect is the part of gitignore whose meaning nobody has to look up: literals, `*` and `?` inside one
segment, `**` as a whole segment, a trailing `/` in deny patterns only. `check_pattern` refuses the rest:

    E202  too long, or more wildcards than stay cheap to match
    E203  outside the subset: `!`, `[`, `\`, `#`, `**` beside other characters, an empty segment, …
    E205  an allow or quota pattern without a leading `/`
    E206  an anchored pattern whose first segment can be no declared scope

Contract:
    M1  An allow pattern matches whole canonical file paths, exactly as written: `/user/*.md` does not match
        `user/a.md/evil.sh`. A trailing `/**` means every file below.
    M2  A deny pattern matches a file, or every path below a directory of that name. It is compared as
        written and folded on both sides, so that folding can only deny more. With a `?` it is also compared
        with the case of single characters folded: `A?` denies `aß`, though that folds to three characters.
    M3  Matching is by pathspec's own expressions, with the backend pinned: what else is installed changes
        no verdict (T-POL-08). tests/policy/test_pathspec_facts.py holds pathspec to what is relied on here.
    M4  Cost: at most `MAX_TREE_WILDCARDS` and one ambiguous segment bound the backtracking (T-POL-07).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import pairwise
from typing import Final

from pathspec import PathSpec

from muniment.errors import PolicyInvalid
from muniment.names import Scope
from muniment.policy.grammar import RESERVED_ASCII, CanonicalPath, fold
from muniment.policy.normal import is_normalised

MAX_PATTERN_CHARS: Final = 512
"""Characters of one pattern; half of the longest path, since a pattern is shorter than what it matches."""

MAX_TREE_WILDCARDS: Final = 2
"""`**` segments of one pattern."""

MAX_STARS: Final = 2
"""`*` in one segment; only one segment of a pattern may have more than one."""

_FORBIDDEN: Final = RESERVED_ASCII - frozenset("*?/")
_EVERY_FILE: Final = "/*/**/*"


def check_pattern(pattern: str, *, deny: bool, scopes: Collection[Scope], where: str) -> None:
    """Refuse a pattern that is outside the dialect. Whether it fires is for `selftest` to say.

    Args:
        pattern: the text as it stands in the policy.
        deny: whether it stands in a deny rule; other patterns must be anchored and name files.
        scopes: the scopes that the policy declares.
        where: policy and rule, for the message.

    Raises:
        PolicyInvalid: see the codes above.
    """
    problem = (
        _outside_subset(pattern, deny=deny)
        or _too_costly(pattern)
        or _unanchored(pattern, deny=deny)
        or _unknown_scope(pattern, scopes)
    )
    if problem is not None:
        code, text = problem
        raise PolicyInvalid(code, where, f"pattern {pattern!r} {text}")


class AllowPatterns:
    """Patterns that match exact files (M1)."""

    __slots__ = ("_first_segments", "_regexes")

    def __init__(self, patterns: Iterable[str]) -> None:
        anchored = tuple(patterns)
        self._regexes = tuple(_compile(exact_form(pattern)) for pattern in anchored)
        self._first_segments = tuple(pattern.split("/")[1] for pattern in anchored)

    def match(self, path: CanonicalPath) -> bool:
        """Whether one of the patterns is this very file; never for a scope itself."""
        text = path.text
        return bool(path.rel) and any(regex.fullmatch(text) is not None for regex in self._regexes)

    def reach(self, scope: Scope) -> bool:
        """Whether a pattern may match some file of the scope. True may be too much, False never is."""
        return any(fnmatchcase(scope, first) for first in self._first_segments)


class DenyPatterns:
    """Patterns that match a file or a whole tree, by any spelling (M2)."""

    __slots__ = ("_as_written", "_folded", "_same_length")

    def __init__(self, patterns: Iterable[str]) -> None:
        as_written = tuple(patterns)
        self._as_written = tuple(_compile(tree_form(pattern)) for pattern in as_written)
        self._folded = tuple(_compile(tree_form(fold(pattern))) for pattern in as_written)
        single = (pattern for pattern in as_written if "?" in pattern)
        self._same_length = tuple(_compile(tree_form(fold_single(pattern))) for pattern in single)

    def match(self, text: str, folded: str) -> bool:
        """Whether one of the patterns covers the path.

        Args:
            text: a canonical path; with a `/` at its end, the directory of that name.
            folded: `fold(text)`, which the caller computes once for all rules.
        """
        if any(regex.search(folded) is not None for regex in self._folded):
            return True
        # `a?b` denies `aßb` as written, but not its folding `assb`: so the written form counts as well.
        if folded != text and any(regex.search(text) is not None for regex in self._as_written):
            return True
        if not self._same_length:
            return False
        same_length = fold_single(text)
        return any(regex.search(same_length) is not None for regex in self._same_length)


@lru_cache(maxsize=64)
def fold_single(text: str) -> str:
    """`text` with the case of each character folded where that gives one character, kept for other rules."""
    if text.isascii():
        return text.lower()
    forms = ((char.casefold(), char.lower(), char) for char in text)
    return "".join(next(form for form in each if len(form) == 1) for each in forms)


@lru_cache(maxsize=4096)
def _compile(pattern: str) -> re.Pattern[str]:
    """What pathspec makes of one pattern; kept, since rules and verbs share patterns.

    Raises:
        PolicyInvalid: pathspec would drop or negate it; E203.
    """
    compiled = PathSpec.from_lines("gitignore", [pattern], backend="simple").patterns
    regex = getattr(compiled[0], "regex", None) if len(compiled) == 1 and compiled[0].include else None
    if not isinstance(regex, re.Pattern):
        raise PolicyInvalid("E203", "pattern", f"pathspec would ignore {pattern!r}")
    return regex


def exact_form(pattern: str) -> str:
    """`pattern` such that a full match of its expression is a file.

    pathspec compiles `/**` and `/**/*` to `.`, which says "anything" only to a search. Every canonical
    file has a scope before it, so the longer form means the same.
    """
    files = f"{pattern}/*" if pattern.endswith("/**") else pattern
    return _EVERY_FILE if files == "/**/*" else files


def tree_form(pattern: str) -> str:
    """`pattern` such that a hit of its expression is a file or anything below a directory.

    pathspec compiles a last segment `*`, and only that, so that it does not match deeper: `/user/*` would
    leave out `user/a/b.md`. Everything directly below and all below that is everything below.
    """
    return f"{pattern}*" if pattern.endswith("/*") else pattern


def _outside_subset(pattern: str, *, deny: bool) -> tuple[str, str] | None:
    if found := sorted(_FORBIDDEN.intersection(pattern)):
        return "E203", f"holds {found[0]!r}; only literals, `*`, `?` and `**` are understood"
    body = pattern.removeprefix("/")
    segments = (body.removesuffix("/") if deny else body).split("/")
    if "" in segments:
        return "E203", "has an empty segment" if deny else "has an empty segment or ends in `/`"
    if any("**" in segment and segment != "**" for segment in segments):
        return "E203", "has `**` beside other characters; it stands for whole segments only"
    if ("**", "**") in pairwise(segments):
        return "E203", "repeats `**`; one is enough"
    if pattern.endswith("**/"):
        return "E203", "ends in `**/`, which pathspec reads as `**`; write that"
    if pattern != pattern.strip() or not pattern.isprintable():
        return "E203", "begins or ends with white space, or holds something that does not print"
    if not is_normalised("NFKC", pattern):
        return "E203", "is not in normal form (NFKC), as every name is"
    return None


def _too_costly(pattern: str) -> tuple[str, str] | None:
    if len(pattern) > MAX_PATTERN_CHARS:
        return "E202", f"is longer than {MAX_PATTERN_CHARS} characters"
    segments = pattern.split("/")
    if segments.count("**") > MAX_TREE_WILDCARDS:
        return "E202", f"has more than {MAX_TREE_WILDCARDS} `**`"
    stars = [segment.count("*") for segment in segments if segment != "**"]
    if max(stars, default=0) > MAX_STARS or sum(count > 1 for count in stars) > 1:
        return "E202", f"has more than {MAX_STARS} `*` in a segment, or several such segments"
    return None


def _unanchored(pattern: str, *, deny: bool) -> tuple[str, str] | None:
    if deny or pattern.startswith("/"):
        return None
    return "E205", f"is not anchored; write {'/' + pattern!r} or begin with a scope"


def is_anchored(pattern: str) -> bool:
    """Whether gitignore ties it to the top: a slash stands anywhere but at the end."""
    return "/" in pattern.removesuffix("/")


def _unknown_scope(pattern: str, scopes: Collection[Scope]) -> tuple[str, str] | None:
    first = pattern.removeprefix("/").partition("/")[0]
    if not is_anchored(pattern) or any(fnmatchcase(scope, first) for scope in scopes):
        return None
    return "E206", f"begins with {first!r}, which is no scope; the scopes are {', '.join(scopes)}"
