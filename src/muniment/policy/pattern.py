r"""The dialect of `paths` in a policy, and a check that gitignore reads a pattern in the same way.

The dialect is the simple part of gitignore: literals, `*` and `?` inside one segment, `**` as a complete
segment, a trailing `/` in deny patterns only. Each other pattern is rejected with one of these codes:

    E202  too long, or more wildcards than are cheap to match
    E203  outside the subset: `!`, `[`, `\`, `#`, `**` next to other characters, an empty segment, …
    E204  pathspec reads it differently (reported by `load`, if the pattern has a path)
    E205  an allow or quota pattern without a leading `/`
    E206  an anchored pattern whose first segment cannot be a declared scope

`muniment.kernel.decide`, M1 to M4, defines the meaning of a pattern. When a policy loads, pathspec, a library
for gitignore, reads each pattern too (`find_disagreement`). This only detects differences: pathspec makes no
decision.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Final

from muniment.errors import BadName, PolicyInvalid
from muniment.kernel.decide import AllowPatterns, DenyPatterns, fold_single, is_anchored
from muniment.kernel.names import Scope
from muniment.kernel.normal_forms import is_normalised
from muniment.kernel.path import RESERVED_ASCII, CanonicalPath, fold

MAX_PATTERN_CHARS: Final = 512
"""Maximum length of a pattern: half of the longest path, since a pattern is shorter than its paths."""

MAX_TREE_WILDCARDS: Final = 2
"""Maximum number of `**` segments of one pattern."""

MAX_STARS: Final = 2
"""Maximum number of `*` in one segment; only one segment of a pattern may have more than one."""

_FORBIDDEN: Final = RESERVED_ASCII - frozenset("*?/")


def check_pattern(pattern: str, *, deny: bool, scopes: Collection[Scope], where: str) -> None:
    """Raise if a pattern is outside the dialect. `load` checks whether it has an effect.

    Args:
        pattern: the text as it is in the policy.
        deny: whether it is in a deny rule; other patterns must be anchored and match files.
        scopes: the scopes that the policy declares.
        where: policy and rule, for the message.

    Raises:
        PolicyInvalid: the pattern is outside the dialect; the module docstring lists the codes.
    """
    problem = (
        _check_subset(pattern, deny=deny)
        or _check_cost(pattern)
        or _check_anchor(pattern, deny=deny)
        or _check_scope(pattern, scopes)
    )
    if problem is not None:
        code, text = problem
        raise PolicyInvalid(code, where, f"pattern {pattern!r} {text}")


def _check_subset(pattern: str, *, deny: bool) -> tuple[str, str] | None:
    if found := sorted(_FORBIDDEN.intersection(pattern)):
        return "E203", f"contains {found[0]!r}; use only literals, `*`, `?` and `**`"
    body = pattern.removeprefix("/")
    segments = (body.removesuffix("/") if deny else body).split("/")
    if "" in segments:
        return (
            "E203",
            "has an empty segment; remove a `/`"
            if deny
            else "has an empty segment or ends in `/`; remove a `/`",
        )
    if any("**" in segment and segment != "**" for segment in segments):
        return "E203", "has `**` next to other characters; use it only as a complete segment"
    if ("**", "**") in pairwise(segments):
        return "E203", "repeats `**`; write it once"
    if pattern.endswith("**/"):
        return "E203", "ends in `**/`, which pathspec reads as `**`; write that"
    if pattern != pattern.strip() or not pattern.isprintable():
        return "E203", "begins or ends with white space, or contains a non-printable character; remove it"
    if not is_normalised("NFKC", pattern):
        return "E203", "is not in normal form (NFKC), as every name must be; write it in this form"
    return None


def _check_cost(pattern: str) -> tuple[str, str] | None:
    if len(pattern) > MAX_PATTERN_CHARS:
        return "E202", f"is longer than {MAX_PATTERN_CHARS} characters; shorten it"
    segments = pattern.split("/")
    if segments.count("**") > MAX_TREE_WILDCARDS:
        return "E202", f"has more than {MAX_TREE_WILDCARDS} `**`; use fewer"
    stars = [segment.count("*") for segment in segments if segment != "**"]
    if max(stars, default=0) > MAX_STARS or sum(count > 1 for count in stars) > 1:
        return (
            "E202",
            f"has more than {MAX_STARS} `*` in a segment, or several segments with more than one; use fewer",
        )
    return None


def _check_anchor(pattern: str, *, deny: bool) -> tuple[str, str] | None:
    if deny or pattern.startswith("/"):
        return None
    return "E205", f"is not anchored; write {'/' + pattern!r} or begin with a scope"


def _check_scope(pattern: str, scopes: Collection[Scope]) -> tuple[str, str] | None:
    first = pattern.removeprefix("/").partition("/")[0]
    if not is_anchored(pattern) or any(fnmatchcase(scope, first) for scope in scopes):
        return None
    return "E206", f"begins with the unknown scope {first!r}; use one of {', '.join(scopes)}"


# -- second opinion ----------------------------------------------------------------------------------


def find_disagreement(pattern: str, path: CanonicalPath, *, deny: bool) -> str | None:
    """Return a path for which pathspec and the kernel read a pattern differently, or None if they agree.

    The comparison uses `path` and some paths near it.

    Args:
        pattern: a pattern of the dialect.
        path: a path that the pattern matches.
        deny: whether the pattern is in a deny rule.
    """
    denies, allows = DenyPatterns((pattern,)), AllowPatterns(() if deny else (pattern,))
    opinion = _build_tree_matcher(pattern) if deny else _build_file_matcher(pattern)
    for near in _iterate_near_paths(path):
        decided = denies.match(near.text, fold(near.text)) if deny else allows.match(near)
        if decided != opinion(near.text):
            return near.text
    return None


def _iterate_near_paths(path: CanonicalPath) -> Iterator[CanonicalPath]:
    """Yield a path and paths near it.

    These are a file below it, files next to it, the path with its name in other capitals, and its directory.
    """
    yield path
    sibling_names = (f"{path.name}-", f"-{path.name}", path.name.swapcase())
    for parent, name in ((path, "-"), *((path.parent, each) for each in sibling_names)):
        with suppress(BadName):  # Such a path cannot be requested.
            yield parent.child(name)
    if path.parent.rel:
        yield path.parent


def _build_file_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that returns whether pathspec matches a path itself, not only a parent of it.

    Path and pattern get the same last name, which no file has, so that a match is exact.
    """
    spec = _compile_pathspec(f"{pattern}/*/%" if pattern.endswith("/**") else f"{pattern}/%")
    return lambda text: spec(f"{text}/%")


def _build_tree_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that returns whether pathspec matches a path or a directory above it.

    Path and pattern are compared in each form that rule M2 of `kernel.decide` defines.
    """
    spells: list[Callable[[str], str]] = [str, fold, *([fold_single] if "?" in pattern else [])]
    spellings = [(spell, _compile_pathspec(spell(pattern))) for spell in spells]

    def matches(text: str) -> bool:
        ends = [index for index, char in enumerate(text, 1) if char == "/"]
        return any(spec(spell(text[:end])) for spell, spec in spellings for end in (None, *ends))

    return matches


def _compile_pathspec(line: str) -> Callable[[str], bool]:
    """Return pathspec's matcher for one line of gitignore.

    Its backend is fixed, so that the result does not depend on installed packages.
    """
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines([line], backend="simple").match_file
