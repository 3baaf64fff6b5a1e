"""Convert untrusted text to a canonical logical path; reject invalid text and never repair it.

Contract:
    G0  Every `CanonicalPath` is canonical, with any creator: at most `MAX_DEPTH` segments and
        `MAX_PATH_BYTES`, and `find_segment_problem` finds no problem in any segment.
    G1  `canonicalise` returns a path whose first segment is a declared scope, or raises `PathEscape`,
        `BadName` or `Refused`. For any `str`, it has no other result.
    G2  One name, one spelling: a canonical path is NFKC-stable, without empty, `.` or `..` segments and
        without invisible characters. Nothing in it is ever decoded (`%`, `~`, `$`) or expanded. Folding a
        path folds each of its characters separately.
    G3  If a path is both an escape and a bad name, it counts as an escape, so that it can end the run. G4 is
        the only exception.
    G4  The cost is bounded by `MAX_PATH_BYTES`: longer text is rejected as a bad name without further checks.

Not guaranteed: that the file exists, or that the path is not a link; `muniment.kernel.root` checks that.
Letters and digits that resemble a slash or dot in some fonts (Katakana no, Arabic zero, Lisu tones) are
allowed, because words contain them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Self, final

from muniment.kernel.names import MAX_DEPTH, MAX_PATH_BYTES, MAX_SEGMENT_BYTES, RelPath, Scope, Via, join_path
from muniment.kernel.normal_forms import MAX_MARKS, find_overlong_run, is_normalised, normalise
from muniment.kernel.refusal import BadName, PathEscape, Refusal, Refused, printable

# models that were trained on memory tools write this prefix; it is dropped once
MEMORIES_PREFIX: Final = "/memories/"
GRAMMAR_LAYER: Final = "grammar"  # `Refused.layer` of a request that is denied before a policy is checked
FILE_SUFFIX: Final = ".md"  # required suffix of every new file, in exactly this case

# ASCII with a meaning to shells, globs, URLs, markdown links or Windows (policy.md, Meaning 4).
RESERVED_ASCII: Final = frozenset('\\:*?"<>|[](){}%#!$~^`/')

# Lookalikes of slash, backslash and dot that are NFKC-stable; the others (U+2024, U+FF0F, …) fail G2. Source:
# Unicode UTS #39 confusables.txt, all that are neither letters nor digits, and U+3002, which IDNA (UTS #46)
# treats as a dot.
CONFUSABLES: Final = frozenset(
    "\u1735\u2041\u2044\u2215\u2571\u27cb\u29f8\u31d3\U0001d23a"  # like a slash
    "\u2216\u2572\u27cd\u29f5\u29f9\u31d4\U0001d20f\U0001d23b"  # like a backslash
    "\u0701\u0702\u3002\ua60e\U00010a50\U0001d16d"  # like a dot
)

# Invisible characters whose category is letter, mark or symbol. Source: Default_Ignorable_Code_Point of
# DerivedCoreProperties.txt, less Cf and Cn, which `_CATEGORIES` covers; and U+2800, the empty Braille
# pattern.
BLANKS: Final = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
    + "".join(map(chr, [*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]))
)

# Rejected categories. Unassigned characters are included, since their normalisation may change when Unicode
# assigns them. So a name in a script that this Python version does not know is rejected.
_CATEGORIES: Final = {
    "Cc": "a control character",
    "Cf": "an invisible format character",
    "Cs": "a lone surrogate",
    "Co": "a private-use character",
    "Cn": "an unassigned character",
    "Zl": "a line separator",
    "Zp": "a paragraph separator",
    "Zs": "a space other than the ordinary one",
}

# Names that Windows opens as devices, with any extension. `CONIN$` and superscript digits fail earlier.
# Source: learn.microsoft.com, "Naming Files, Paths, and Namespaces".
_DEVICE: Final = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9]) *(?:\..*)?", re.DOTALL | re.IGNORECASE)

_TOO_LONG: Final = f"the path is longer than {MAX_PATH_BYTES} bytes; shorten it"
_DRIVE_OR_UNC: Final = re.compile(r"[A-Za-z]:|[\\/]{2}[^\\/]")

# Fast path for most names and paths: ASCII without special cases. The checks below decide on all others.
_DEVICE_LIKE: Final = r"[ACLNPaclnp][OPRUopru][LMNTXlmntx](?:[ .0-9/]|\Z)"
_SIMPLE: Final = rf"(?!{_DEVICE_LIKE})[A-Za-z0-9_+,&@;='.-][A-Za-z0-9_+,&@;='. -]{{0,254}}+(?<![ .])"
_SIMPLE_NAME: Final = re.compile(_SIMPLE)
_SIMPLE_PATH: Final = re.compile(rf"{_SIMPLE}(?:/{_SIMPLE}){{0,{MAX_DEPTH - 1}}}")


_set_attribute: Final = object.__setattr__  # looked up once, for speed


@final
@dataclass(frozen=True, slots=True, order=True, init=False)
class CanonicalPath:
    """A logical path that the name grammar allows. Functions that use paths accept this class and no text.

    Attributes:
        scope: the first segment.
        rel: the path inside the scope, `/`-separated; empty for the scope itself.

    Raises:
        PathEscape: the path contains NUL or a `..` segment, or begins with a slash or a drive.
        BadName: the path is empty, too long or too deep, or the grammar does not allow a segment.
        TypeError: the path is not text, or is of a subclass of `str`, whose value may change later.

    Cost: 1 µs; for a path that is not ASCII, 2 to 10 µs per name.
    """

    scope: Scope
    rel: RelPath

    def __new__(cls, scope: Scope, rel: RelPath) -> Self:
        """Check and create a path. `__init__` could be called again on the same path, so it is not used."""
        _require_canonical(scope, rel)
        self = object.__new__(cls)
        _set_attribute(self, "scope", scope)
        _set_attribute(self, "rel", rel)
        return self

    def __init_subclass__(cls) -> None:
        raise TypeError("CanonicalPath cannot be subclassed")

    def __setstate__(self, _state: object) -> None:
        raise TypeError("a CanonicalPath is created only by its constructor")

    @property
    def text(self) -> str:
        """Return the logical path as text, such as `user/a/b.md`, or `user` for the scope itself."""
        return f"{self.scope}/{self.rel}" if self.rel else self.scope

    @property
    def segments(self) -> tuple[str, ...]:
        """Return all segments of the path; the first one is the scope."""
        return tuple(self.text.split("/"))

    @property
    def name(self) -> str:
        """Return the last segment of the path."""
        return self.text.rpartition("/")[2]

    @property
    def parent(self) -> CanonicalPath:
        """Return the directory that contains this path; a scope is its own parent."""
        return CanonicalPath(self.scope, RelPath(self.rel.rpartition("/")[0]))

    def child(self, name: str) -> CanonicalPath:
        """Return the path of `name` in this directory; `name` may be any text.

        Raises:
            PathEscape, BadName: the new path is invalid, as described in the class, or `name` has several
                segments.
        """
        path = CanonicalPath(self.scope, join_path(self.rel, name))
        if not name or "/" in name:
            raise _build_bad_name(name, "use exactly one name, without a slash")
        return path


def canonicalise(unsafe_path: str, scopes: Collection[Scope]) -> CanonicalPath:
    """Convert an untrusted path to a canonical path, or reject it.

    Args:
        unsafe_path: any text, from a model or a request. One leading `/memories/` or `/` is dropped.
        scopes: the declared scopes of the run.

    Raises:
        PathEscape: the path contains NUL or a `..` segment, begins with a drive or network share, or is
            absolute and its first segment is not a declared scope.
        BadName: the path is empty, too long or too deep, or the grammar does not allow a segment.
        Refused: the path is relative and its first segment is not a declared scope; the rule is `scopes`.
    """
    if len(unsafe_path) > MAX_PATH_BYTES + len(MEMORIES_PREFIX):  # A character is at least one byte (G4).
        raise _build_bad_name(unsafe_path, _TOO_LONG)
    text = _strip_prefix(unsafe_path)
    scope, slash, rel = text.partition("/")
    try:
        path = CanonicalPath(Scope(scope), RelPath(rel or slash))  # `user/` is not `user`.
        if scope in scopes:
            return path
        choice = " or ".join(f"{each}/" for each in scopes) or "a scope (this memory has none)"
        reason = f"unknown scope {printable(scope)!r}; begin the path with {choice}"
        refusal: PathEscape | Refusal = Refused(reason, rule="scopes", layer=GRAMMAR_LAYER)
    except (PathEscape, BadName) as error:
        refusal = error
    is_absolute = unsafe_path.startswith("/") and scope not in scopes
    # The message must quote the text of the caller, unless only the scope is wrong.
    raise _find_error(unsafe_path, text.split("/"), is_absolute=is_absolute) or refusal from None


def check_suffix(path: CanonicalPath) -> None:
    """Reject a new file whose name does not end in `.md`.

    Raises:
        BadName: the suffix is missing or in another case, or the name before it is empty or only dots.
    """
    stem = path.name.removesuffix(FILE_SUFFIX)
    if not path.rel or stem == path.name or not stem.strip("."):
        raise _build_bad_name(path.text, f"a new file needs a name that ends in {FILE_SUFFIX} (lower case)")


def find_segment_problem(name: str) -> str | None:
    """Return why the grammar does not allow a name as a path segment, in one line; None if it does.

    Accepts any `str`, including names that were read from disk with surrogateescape. Takes about 1 µs for a
    plain name.
    """
    if _SIMPLE_NAME.fullmatch(name) is not None:
        return None
    if name in {"", ".", ".."}:
        return f"{name!r} is not a name; write the name of every folder and file"
    if len(name) > MAX_SEGMENT_BYTES or len(name.encode(errors="surrogatepass")) > MAX_SEGMENT_BYTES:
        return f"a name is longer than {MAX_SEGMENT_BYTES} bytes; shorten it"
    if (problem := _find_character_problem(name)) is None and _DEVICE.fullmatch(name) is not None:
        return "a name is reserved for a device on Windows; use another one"
    return problem


def is_canonical_character(char: str) -> bool:
    """Return whether a name may contain the character `char`; False for `/`, which separates names."""
    return _describe_rejected_character(char) is None and is_normalised("NFKC", char)


def fold(text: str) -> str:
    """Return `text` without differences of case and Unicode compatibility, for comparing names.

    Applies NFKC and casefold until nothing changes, because each can undo the other (example: U+1E96).
    """
    if text.isascii():
        return text.lower()
    folded = normalise("NFKC", text.casefold())
    return folded if folded == text else fold(folded)


def _strip_prefix(unsafe_path: str) -> str:
    if unsafe_path.startswith(MEMORIES_PREFIX):
        return unsafe_path[len(MEMORIES_PREFIX) :]
    return "" if unsafe_path == MEMORIES_PREFIX[:-1] else unsafe_path.removeprefix("/")


def _require_canonical(scope: str, rel: str) -> None:
    """Raise an error unless `scope` and `rel` form a canonical path, as described in `CanonicalPath`."""
    if type(scope) is not str or type(rel) is not str:
        raise TypeError("a path must be plain text (str)")
    text = f"{scope}/{rel}" if rel else scope
    if len(text) > MAX_PATH_BYTES:
        raise _build_bad_name(text, _TOO_LONG)
    if "/" in scope or _SIMPLE_PATH.fullmatch(text) is None:
        segments = [scope, *rel.split("/")] if rel else [scope]
        refusal = _find_error(text, segments, is_absolute=text.startswith("/") or rel.startswith("/"))
        if refusal is not None:
            raise refusal


def _find_error(text: str, segments: list[str], *, is_absolute: bool) -> PathEscape | BadName | None:
    """Return the error for a path, or None if the path is valid.

    Args:
        text: the path that the error quotes.
        segments: the segments of the path.
        is_absolute: whether the path begins with a slash.
    """
    if (via := _find_escape(text, is_absolute=is_absolute and any(segments))) is not None:
        return PathEscape(via, text)
    problem = _find_problem(segments)
    return None if problem is None else _build_bad_name(text, problem)


def _find_escape(text: str, *, is_absolute: bool) -> Via | None:
    """Return how the path would leave the memory, or None if it would not. The cheapest checks come first."""
    if "\0" in text:
        return Via.NUL
    if ".." in text.split("/"):
        return Via.DOTDOT
    # `/` and `/memories/` point to nothing, so they are bad names.
    return Via.ABSOLUTE if is_absolute or _DRIVE_OR_UNC.match(text) is not None else None


def _find_problem(segments: list[str]) -> str | None:
    if not any(segments):
        return "the path is empty; give a scope, folders and a name that ends in .md"
    if len(segments) > MAX_DEPTH:
        return f"the path has more than {MAX_DEPTH} parts; use fewer folders"
    if len("/".join(segments).encode(errors="surrogatepass")) > MAX_PATH_BYTES:
        return _TOO_LONG
    return next((problem for name in segments if (problem := find_segment_problem(name)) is not None), None)


def _find_character_problem(name: str) -> str | None:
    """Return the problem of the first invalid character or of the complete name, or None."""
    for char in name:
        if (kind := _describe_rejected_character(char)) is not None:
            return f"U+{ord(char):04X} is {kind}; leave it out"
    if find_overlong_run(name) is not None:
        return f"a name has more than {MAX_MARKS} combining marks in a row; leave them out"
    if not is_normalised("NFKC", name):
        return "a name is not in normal form (NFKC); write it with ordinary characters"
    if name.startswith(" ") or name.endswith((" ", ".")):
        return "a name begins with a space, or ends with a space or dot; leave that out"
    if fold(name) != "".join(map(fold, name)):
        return "a letter and the mark after it change when case is ignored; leave the mark out"
    return None


def _describe_rejected_character(char: str) -> str | None:
    if char in RESERVED_ASCII:
        return f"the reserved character {char}"
    if char in CONFUSABLES:
        return "easily confused with a slash or dot"
    if char in BLANKS:
        return "invisible"
    return None if char == " " else _CATEGORIES.get(unicodedata.category(char))


def _build_bad_name(unsafe_path: str, problem: str) -> BadName:
    return BadName(f"{printable(unsafe_path)!r}: {problem}")
