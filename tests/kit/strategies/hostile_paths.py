r"""Paths of a hostile model: valid paths with one or two errors, and random text.

The possible errors are listed by part of the path: the prefix before the scope, the spelling of the scope,
names, and changes of the complete path. Attacks on other tools consist of the same parts: `user/../..`,
`/memories/../etc`, `user-evil/a.md`, `C:\a`, `user/%2e%2e/a`, `us\u0435r/a.md`, `user/a\0.md`.

Each strategy of this package mostly draws almost valid values, since obvious errors are denied early; each
also draws valid values and shrinks towards them. `tests/units/testing/test_strategies.py` verifies that each
covers its targets. They import no code under test.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import Final

from hypothesis import strategies as st

SCOPES: Final = ("user", "project")

NAMES: Final = ("note.md", "topic", "a.md", "deep", "b.md", "folder.md")
"""Ordinary names; few, so that separately drawn paths are equal sometimes."""

LEADS: Final = (
    *("/", "/memories/", "//", "./", "/./", "/memories//", "memories/", "/memories/memories/", "\\", "\\\\"),
    *("C:\\", "C:", "c:/", "\\\\srv\\share\\", "//srv/share/", "\\\\?\\", "file://", "file:///"),
    *("~/", "~root/", "$HOME/", "${HOME}/", "%HOME%/", "%2f", "%5c", "../", "/../", "/proc/self/root/"),
    *(" ", "\t", "\ufeff", "\u202e", "\0"),
)
"""Prefixes before the scope. Only the first two are valid."""

SCOPE_SPELLINGS: Final = (
    *("users", "use", "user2", "user-evil", "user.", "user ", "User", "USER", "team", "memories", ".", ".."),
    *("us\u0435r", "\uff55\uff53\uff45\uff52", "u\u200bser", "user\u0301", "%75ser", "outside"),
)
"""Invalid scopes that a prefix test, a decoder or a reader may mistake for a scope."""

ODD_SEGMENTS: Final = (
    *("..", ".", "", "...", "....", "..;", ".. ", " ..", "..\u200b", "%2e%2e", "%252e%252e", "..%2f.."),
    "..%00",
    *("\uff0e\uff0e", "\u2024\u2024", "\u2025", "\u2026", "\u3002\u3002", "..\\..", "..\\", "..\u2215x"),
    "..\uff0fx",
    *("\0", "a\0b", "a.md\0.txt", "a\nb.md", "a\r.md", "\x1b[2Ja.md", "\x7f", "\x85", "\u2028"),
    *("\u202ea.md", "a\u2066.md", "a\u200d.md", "\xada.md", "a\ufe0f.md", "\U000e0061.md", "\ufeffa.md"),
    *("e\u0301.md", "\u212b.md", "\ufb01le.md", "\uac00.md", "\u1112\u1161.md", "\u0131.md", "\u1e96.md"),
    *("CON", "nul.md", "com1.md", "aux .md", "CONIN$", "LPT\u00b9.md", "a.md::$DATA", "a.md:x", "a:b.md"),
    *(" a.md", "a.md ", "a.md.", "a.", "~", "~root", "$HOME", "$(id).md", "`id`.md", "{a,b}.md", "*", "?.md"),
    *("[a-z].md", "-rf", "--", "a|b.md", "a;b.md", "<a>.md", '"a".md', "[x](y).md", "&#46;&#46;"),
    *(".git", ".env.md", ".hidden.md", "MEMORY.md", "memory.md", "index", "Index", "pinned", "Pinned"),
    *("CLAUDE.md", "claude.md", "AGENTS.md", "a.txt", "a.MD", ".md", "a.md.py", "a", "secret.md"),
    *("\udcff.md", "\udc2e\udc2e", "\ud800", "日本.md", "项目一", "📝.md", "\u0378.md", "\ue000.md"),
    *("n" * 252 + ".md", "n" * 253 + ".md", "é" * 126 + ".md", "é" * 128, "\u0301" * 90),
)
"""Names with a special meaning for some system, reader or policy; a few are valid."""


def logical_paths(
    names: Sequence[str] = NAMES, *, scopes: Sequence[str] = SCOPES, max_depth: int = 4
) -> st.SearchStrategy[str]:
    """Return valid paths of the form `scope/name/…`.

    Args:
        names: names under the scope; a name may contain `/`, such as the path in a planted tree.
        scopes: the first segments.
        max_depth: maximum number of `names` in one path.
    """
    below = st.lists(st.sampled_from(list(names)), max_size=max_depth)
    return st.builds(lambda scope, rest: "/".join([scope, *rest]), st.sampled_from(list(scopes)), below)


def unsafe_paths(names: Sequence[str] = NAMES, *, scopes: Sequence[str] = SCOPES) -> st.SearchStrategy[str]:
    """Return any text as a path, mostly a valid path with an error.

    Args:
        names: as in `logical_paths`; use the names of a planted tree, including links, to target it.
        scopes: as in `logical_paths`.
    """
    good = logical_paths(names, scopes=scopes)
    damaged = _damaged(good, names, scopes)
    return st.one_of(good, damaged, damaged, damaged, _text())


def _text() -> st.SearchStrategy[str]:
    every = st.characters(exclude_categories=())
    return st.text(every, max_size=40) | st.text("./\\~%:\0$ \n..userprojctmd\u202e\ud800", max_size=30)


@st.composite
def _damaged(
    draw: st.DrawFn, good: st.SearchStrategy[str], names: Sequence[str], scopes: Sequence[str]
) -> str:
    segments = draw(good).split("/")
    lead = ""
    for damage in draw(st.lists(st.sampled_from(["lead", "scope", "name", "climb"]), min_size=1, max_size=2)):
        if damage == "lead":
            lead = draw(st.sampled_from(LEADS))
        elif damage == "scope":
            segments[0] = draw(st.sampled_from(SCOPE_SPELLINGS))
        elif damage == "name":
            odd = draw(st.sampled_from(ODD_SEGMENTS))
            segments.insert(draw(st.integers(1, len(segments))), odd)
        else:
            segments += _climb(draw, names, scopes)
    path = lead + "/".join(segments)
    return draw(st.just(path) | st.sampled_from(_WHOLE).map(lambda change: change(path)))


def _climb(draw: st.DrawFn, names: Sequence[str], scopes: Sequence[str]) -> list[str]:
    """Return segments that go up and down again: outside, into another scope, or back to the start."""
    towards = [["outside", "secret.md"], ["etc", "passwd"], [scopes[-1]], [names[0]], []]
    return [".."] * draw(st.integers(1, 9)) + draw(st.sampled_from(towards))


_WHOLE: Final[tuple[Callable[[str], str], ...]] = (
    lambda path: path + "/",
    lambda path: path + "/.",
    lambda path: path + "/..",
    lambda path: path + "\0",
    lambda path: path + "\n",
    lambda path: path + " ",
    lambda path: path.replace("/", "//", 1),
    lambda path: path.replace("/", "//"),
    lambda path: path.replace("/", "\\"),
    lambda path: path.replace("/", "\\", 1),
    lambda path: path.replace("/", "\u2215"),
    lambda path: path.replace("/", "\uff0f"),
    lambda path: path.replace("/", "%2f"),
    lambda path: path.replace(".", "%2e"),
    lambda path: path.replace(".", "\uff0e"),
    lambda path: path.replace("/", "/./"),
    lambda path: "".join(f"%{byte:02x}" for byte in path.encode(errors="surrogatepass")),
    lambda path: f'"{path}"',
    lambda path: f"file://{path}",
    lambda path: path.upper(),
    lambda path: unicodedata.normalize("NFD", path),
    lambda path: path.encode("utf-8", "surrogatepass").decode("latin-1"),
    lambda path: path + "/" + "n" * 256,
    lambda path: path + "/d" * 40,
    lambda path: path + "/" + "n" * 1100,
    lambda path: path + "/.." * 400,
)
"""Changes of the complete path, including several encodings."""
