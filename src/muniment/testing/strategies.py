"""Hypothesis strategies for whatever an attacker may choose, and a way to put a drawn tree on the disk.

    @given(unsafe_paths())
    def test_no_path_leaves_the_memory(unsafe_path): ...

    @given(trees(), st.lists(tool_calls()))
    def test_no_tree_lets_a_call_out(tree, calls):
        plant(tree, tmp / "user", outside=tmp / "outside")

Each strategy draws mostly what is almost right, since what is plainly wrong is refused early; each also draws
what is right, and shrinks towards it. `tests/units/testing/test_strategies.py` shows that every one reaches
what it is there for. They know the words of Muniment (scopes `user` and `project`, paths, five tools), and
import none of the code that they are used against.

Needs `hypothesis`, which the extra `testing` brings.
"""

from __future__ import annotations

import json
import os
import re
import stat
import struct
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, assert_never

from hypothesis import strategies as st

# -- paths -------------------------------------------------------------------------------------------
#
# Paths as a hostile model writes them: a good one with one or two things wrong, and text without any plan.
#
# What can be wrong is listed by the part of the path that it belongs to: what stands before the scope, how
# the scope is spelled, names, and what is done to the whole. Attacks on other tools are built from the same
# parts: `user/../..`, `/memories/../etc`, `user-evil/a.md`, `C:\a`, `user/%2e%2e/a`, `us\u0435r/a.md`,
# `user/a\0.md`.

SCOPES: Final = ("user", "project")

NAMES: Final = ("note.md", "topic", "a.md", "deep", "b.md", "folder.md")
"""Ordinary names; few, so that paths drawn apart from each other meet."""

LEADS: Final = (
    *("/", "/memories/", "//", "./", "/./", "/memories//", "memories/", "/memories/memories/", "\\", "\\\\"),
    *("C:\\", "C:", "c:/", "\\\\srv\\share\\", "//srv/share/", "\\\\?\\", "file://", "file:///"),
    *("~/", "~root/", "$HOME/", "${HOME}/", "%HOME%/", "%2f", "%5c", "../", "/../", "/proc/self/root/"),
    *(" ", "\t", "\ufeff", "\u202e", "\0"),
)
"""What stands before the scope. All but the first two are wrong."""

SCOPE_SPELLINGS: Final = (
    *("users", "use", "user2", "user-evil", "user.", "user ", "User", "USER", "team", "memories", ".", ".."),
    *("us\u0435r", "\uff55\uff53\uff45\uff52", "u\u200bser", "user\u0301", "%75ser", "outside"),
)
"""Names that are no scope, and that a test of prefixes, a decoder or an eye may take for one."""

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
"""Names that mean something to some system, reader or policy; a few of them are good all the same."""


def logical_paths(
    names: Sequence[str] = NAMES, *, scopes: Sequence[str] = SCOPES, max_depth: int = 4
) -> st.SearchStrategy[str]:
    """Good paths of the form `scope/name/…`.

    Args:
        names: what may stand below the scope; a name may hold `/`, such as a whole path of a planted tree.
        scopes: the first segments.
        max_depth: names of `names` in one path, at most.
    """
    below = st.lists(st.sampled_from(list(names)), max_size=max_depth)
    return st.builds(lambda scope, rest: "/".join([scope, *rest]), st.sampled_from(list(scopes)), below)


def unsafe_paths(names: Sequence[str] = NAMES, *, scopes: Sequence[str] = SCOPES) -> st.SearchStrategy[str]:
    """Any text as a path, most of it a good path with something wrong.

    Args:
        names: as `logical_paths`; give the names of a planted tree, links included, to aim at it.
        scopes: as `logical_paths`.
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
    """Up and down again: outside, into another scope, or to where the way began."""
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
"""What is done to a path as a whole; several encodings of one path among it."""


# -- entries -----------------------------------------------------------------------------------------
#
# Entries as text: front matter that YAML writers write, and front matter that only looks like it.
#
# What is drawn holds every kind of scalar and list that front matter may have, also unfinished, nested,
# doubled, commented out, behind a byte order mark, with any line break that some reader takes for one,
# closed or not.

KEYS: Final = (
    "name",
    "description",
    "type",
    "keywords",
    "muniment",
    "x",
    '"name"',
    "'type'",
    '"\\u006duniment"',
)

VALUES: Final = (
    *("", "a", "Prefers dark mode", "user", "project", "~", "null", "yes", "1", "1e3", "0x1f", "2026-11-21"),
    *('"a"', "'a'", "'it''s'", '"\\u202e"', '"\\ud83d\\ude00"', '"\\ud83d"', '"\\x00"', '"\\'),
    *('"left open', "'open"),
    *("a: b", "a:b", "a #b", "a#b", "# c", "- a", "? a", "& a", "&a b", "*a", "!!str a", "!a", "%a", "@a"),
    "`a`",
    *("[a, b]", '[a, "b, c"]', "[a", "a]", "[]", "[[a]]", "{a: b}", "{", "[a, {b: c}]", "[?, -]", "[a,]"),
    "[,]",
    *("|", ">", "|-", ">+", "|2", ">9", "|x", "| # c", ">- #c", '{"id": "01J", "trust": "owner"}'),
    '{"a": NaN}',
    *("a\tb", "\ta", "a\u2028b", "a\x85b", "é\u0301", "日本", "\ufeffa", "\x07", "\U000e0041", "a\u200bb"),
)
"""What may follow a colon."""

BELOW: Final = (
    *("  more", " - a", "- a", "  - a: b", "  # c", "#c", "", " ", "\t", "\tmore", "   deeper", "plain"),
    *("..", "----"),
    *("'closed'", '  end"', "  ]", "]", "? x", ": y", "name : a", " name: b", "name:b", "---x", "--- x"),
    "... #",
)
"""Lines between the keys."""

GOOD_LINES: Final = (
    *("name: Prefers dark mode", "description: Editor appearance", "type: user"),
    'keywords: [theme, "dark mode"]',
    *('muniment: {"id": "01J", "trust": "owner"}', "name: 'a'", "type: project", "keywords:", "- a"),
    "# comment",
)
"""Lines as they stand in real entries."""

BREAKS: Final = ("\r\n", "\r", "\x85", "\u2028")

MARKS: Final = ("\ufeff---", "--- ", "---\t", " ---", "----", "\n---", "--- #", "\ufeff\ufeff---", "", "+++")
"""Opening lines; the first three open."""

CLOSINGS: Final = ("...", "--- ", "", "----", " ---", "---\u2028", "--- # c", "---x")
"""Closing lines; the first two close."""

BODIES: Final = (
    "text\n",
    "",
    "# Heading\n\nText.\n",
    "---\nname: b\n---\n",
    "```\n# code\n",
    "> - 1) item\n",
)


def entry_texts() -> st.SearchStrategy[str]:
    """The text of an entry, most of it with front matter. May hold lone surrogates in the body."""
    body = st.sampled_from(BODIES) | st.text(st.characters(exclude_categories=()), max_size=40)
    front = _fronts()
    return st.one_of(body, *[st.builds(str.__add__, front, body)] * 3)


@st.composite
def _fronts(draw: st.DrawFn) -> str:
    """Front matter with at most two of its parts wrong."""
    mark, newline, closing = "---", "\n", "---"
    lines = draw(st.lists(st.sampled_from(GOOD_LINES), max_size=5, unique=True))
    for damage in draw(
        st.lists(st.sampled_from(["lines", "lines", "mark", "newline", "closing"]), max_size=2)
    ):
        if damage == "lines":
            lines = draw(st.permutations(lines + draw(st.lists(_bad_lines(), min_size=1, max_size=4))))
        elif damage == "mark":
            mark = draw(st.sampled_from(MARKS))
        elif damage == "newline":
            newline = draw(st.sampled_from(BREAKS))
        else:
            closing = draw(st.sampled_from(CLOSINGS))
    return newline.join([mark, *lines, closing, ""])


def _bad_lines() -> st.SearchStrategy[str]:
    keys = st.sampled_from(KEYS)
    pair = st.builds("{}: {}".format, keys, st.sampled_from(VALUES))
    bare = st.builds("{}{}".format, keys, st.sampled_from([":", " : a", "", ":\ta", "::"]))
    anything = st.text("ab:#'\"[]{}|>-&*!?%@`\\~ \t,", max_size=12)
    return st.one_of(pair, pair, st.sampled_from(BELOW), bare, anything)


# -- calls -------------------------------------------------------------------------------------------
#
# Tool calls as a model makes them: the right shape with hostile values, and any shape at all.
#
# A call is a pair (tool, arguments), as `Sandbox.call` takes them; a driver of another tool translates it.

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
"""Text and how often: above the usual quota of a file, and above what any file may hold. Kept apart, since
Hypothesis prints the strategies of a state machine."""

PIECES: Final = ("text", "a", "\n", "---", "name", "x", "", " ", "texttext", "é", "\0", "\u202e", "\ud800")
"""What is replaced and what it is replaced by: short, so that it occurs."""

_NUMBERS: Final = (0, 1, 2, 400, -1, 10**30, True, None, "1", 1.0, 2.5)


def tool_calls(paths: st.SearchStrategy[str] | None = None) -> st.SearchStrategy[Call]:
    """Calls of the five tools whose arguments have the right names; the values need not be good.

    Args:
        paths: of the calls; `unsafe_paths()` unless given.
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


# -- trees -------------------------------------------------------------------------------------------
#
# Trees as a hostile neighbour leaves them in a scope root: links, second names, special files, odd names.
#
# A tree is plain data (`Tree`), so that a failing example can be read; `plant` builds it in a throwaway
# directory that the test made. Nothing here follows a link, and no link leads to a real directory of the
# system but through `/proc/self`.


@dataclass(frozen=True, slots=True)
class File:
    """A regular file."""

    content: bytes


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link.

    Attributes:
        target: as it will stand in the link. `{outside}` becomes the absolute path of the outside directory,
            `{up}` the relative one from where the link stands.
    """

    target: str


@dataclass(frozen=True, slots=True)
class HardLink:
    """A second name of a file.

    Attributes:
        target: `{outside}/…`, or the path of a file of the same tree.
    """

    target: str


@dataclass(frozen=True, slots=True)
class Fifo:
    """A named pipe that nobody holds open: who opens it to read waits for ever."""


@dataclass(frozen=True, slots=True)
class Socket:
    """A socket that nobody listens on."""


Node: TypeAlias = "File | Link | HardLink | Fifo | Socket | Tree"
Tree: TypeAlias = Mapping[str, Node]
"""A directory: nodes by name. Names that are not UTF-8 hold surrogate escapes."""

TARGETS: Final = (
    *("{outside}", "{outside}/secret.md", "{outside}/new.md", "{up}", "{up}/secret.md", "{up}/new.md"),
    *("note.md", "topic", "topic/note.md", "./topic", "../note.md", "../project", "../project/note.md"),
    *("nowhere", "nowhere/else.md", ".", "..", "../..", "topic/..", "topic/../note.md", "/proc/self/cwd"),
    *("/proc/self/root", "/proc/self/fd/3", "link.md", "link", "note.md/", "topic//note.md", "\udcff"),
    "a\nb",
)
"""Inside, outside, another scope, dangling, loops through the names below, magic, and odd spellings."""

PLAIN_NAMES: Final = ("note.md", "topic", "a.md", "deep", "b.md", "folder.md", "link.md", "link")

ODD_NAMES: Final = (
    *("A.md", "Note.md", "TOPIC", "MEMORY.md", "memory.md", "index", "pinned", "CLAUDE.md"),
    "memory-before-muniment.md",
    *(".git", ".env", ".muniment-x", "a.txt", ".md", "a.MD", "con.md", "a.md.", "a.md ", " a.md", "-rf"),
    *("*", "%2e%2e"),
    *("a\nb.md", "\x1b[2J.md", "\u202ea.md", "e\u0301.md", "é.md", "\ufb01le.md", "a\\b.md", "..\\x"),
    *("...", "[x](y).md"),
    *("\udcff.md", "\udcc3(.md", "日本.md", "项目一", "📝.md", "n" * 255, "n" * 252 + ".md"),
)

_BYTES: Final = (
    *(b"", b"\n", b"text\n", b"no newline", b"\xff\xfe\n", b"a\0b\n", b"\xef\xbb\xbftext\n", b"\xc3"),
    b"a\r\nb\r\n",
    *(b"\x1b]0;x\x07", b"---\nname: a\n---\nb\n", "\u202e\n".encode()),
)


_LONG: Final = ((b"x", 70_000), (b"line\n", 3_000))
"""Bytes and how often: more than one answer of a tool shows."""


def trees(*, max_depth: int = 3) -> st.SearchStrategy[Tree]:
    """Trees of a few names, half of them ordinary.

    Args:
        max_depth: directories within one another, the tree itself included.
    """
    return _trees(max_depth).flatmap(_with_hard_links)


def plant(tree: Tree, directory: Path, *, outside: Path) -> None:
    """Build `tree` in `directory`, which is made, private, if it is missing.

    Args:
        tree: what to build.
        directory: a throwaway directory without any of the tree's names.
        outside: a throwaway directory with a file `secret.md`, on the same file system.

    Raises:
        OSError: something stands there, or the system refuses.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    later: list[tuple[Path, str]] = []
    for path, node in _walk(tree, directory):
        match node:
            case File():
                path.write_bytes(node.content)
            case Link():
                here = os.path.relpath(outside, path.parent)
                path.symlink_to(node.target.replace("{outside}", str(outside)).replace("{up}", here))
            case HardLink():
                later.append((path, node.target))
            case Fifo():
                os.mkfifo(path, 0o600)
            case Socket():
                os.mknod(path, stat.S_IFSOCK | 0o600)
            case Mapping():
                path.mkdir(mode=0o700)
            case _:
                assert_never(node)
    for path, target in later:
        # Last, since what they name has to be there; a `/` would start from the root of the system.
        first = Path(target.replace("{outside}", str(outside)))
        os.link(directory / first, path, follow_symlinks=False)


def paths_in(tree: Tree) -> Sequence[str]:
    """The paths of all nodes of `tree`, directories too, in order."""
    return [str(path) for path, _ in _walk(tree, Path())]


def _walk(tree: Tree, at: Path) -> Iterator[tuple[Path, Node]]:
    for name, node in sorted(tree.items()):
        yield at / name, node
        if isinstance(node, Mapping):
            yield from _walk(node, at / name)


def _trees(depth: int) -> st.SearchStrategy[Tree]:
    names = st.sampled_from(PLAIN_NAMES) | st.sampled_from(PLAIN_NAMES + ODD_NAMES)
    leaves: list[st.SearchStrategy[Node]] = [
        st.builds(File, _contents()),
        st.builds(Link, st.sampled_from(TARGETS)),
        st.sampled_from([Fifo(), Socket()]),
    ]
    deeper = [_trees(depth - 1)] if depth > 1 else []
    return st.dictionaries(names, st.one_of(leaves[0], *deeper, *leaves), max_size=5)


def _contents() -> st.SearchStrategy[bytes]:
    texts = entry_texts().map(lambda text: text.encode(errors="replace"))
    return st.one_of(
        texts, st.sampled_from(_BYTES), st.sampled_from(_LONG).map(lambda each: each[0] * each[1])
    )


@st.composite
def _with_hard_links(draw: st.DrawFn, tree: Tree) -> Tree:
    files = [str(path) for path, node in _walk(tree, Path()) if isinstance(node, File)]
    targets = st.sampled_from(["{outside}/secret.md", *files]).map(HardLink)
    names = st.sampled_from(PLAIN_NAMES + ODD_NAMES)
    # What the tree has stays: a second name must not take the place of the first.
    return {**draw(st.dictionaries(names, targets, max_size=2)), **tree}


# -- frames ------------------------------------------------------------------------------------------
#
# Bytes as a worker that was taken over sends them: messages of the frame format with something wrong.
#
# A message is a header (u32 length, big-endian; a JSON object) and, where it announces `"body": n`, frames
# of at most 65 536 bytes that together hold n. The format is built here anew from its description, so that
# a fault of the one under test is not a fault of these.

PIECE_BYTES: Final = 65_536
"""Bytes of body in one frame."""

_LENGTHS: Final = (
    0,
    1,
    2,
    3,
    255,
    256,
    65_535,
    65_536,
    65_537,
    262_144,
    262_145,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
)

_HEADERS: Final = (
    *(b"{}", b"[]", b"null", b"1", b'"{}"', b"", b" ", b"{", b"}{", b"{}{}", b"{} ", b"\xef\xbb\xbf{}"),
    *(b"\xff{}", b"{}\0"),
    *(b'{"a":NaN}', b'{"a":1e999}', b'{"a":-Infinity}', b'{"a":1,"a":2}', b'{"a":{"b":1,"\\u0062":2}}'),
    b"{'a':1}",
    *(b'{"a":"\\ud800"}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\n"}', b'{"a":01}', b'{"a":.5}', b'{"a":1}//'),
    b'{"a":+1}',
    *(b'{"body":0}', b'{"body":-1}', b'{"body":true}', b'{"body":1.0}', b'{"body":"3"}', b'{"body":null}'),
    b'{"body":[]}',
    *(b'{"body":3,"body":4}', b'{"body":99999999999999999999}', b'{"body":1e2}', '{"a":1}'.encode("utf-16")),
    *(b'{"a":' + b"[" * 63 + b"]" * 63 + b"}", b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", b'{"a":' * 3_000),
    *(b'{"a":' + b"9" * 4_301 + b"}", b'{"a":"' + b"x" * 70_000 + b'"}'),
)
"""Headers, most of which are none."""


def frame(data: bytes) -> bytes:
    """`data` behind its length."""
    return struct.pack("!I", len(data)) + data


def messages() -> st.SearchStrategy[bytes]:
    """One good message."""
    texts = st.text(max_size=8)
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=5,
    )
    headers = st.dictionaries(texts.filter(lambda key: key != "body"), values, max_size=3)
    sizes = st.sampled_from([0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, 150_000])
    bodies = st.binary(max_size=12) | sizes.map(lambda size: b"x" * size)
    return st.builds(_message, headers, bodies, st.booleans())


def frames() -> st.SearchStrategy[bytes]:
    """A stream: messages, good and not, whole or cut off, and junk."""
    known = st.sampled_from(_HEADERS)
    header = st.one_of(known, known, known, st.binary(max_size=8))
    lying = st.builds(
        lambda length, data: struct.pack("!I", length) + data, st.sampled_from(_LENGTHS), header
    )
    piece = st.binary(max_size=6).map(frame)
    announced = st.builds(
        lambda size, pieces: frame(b'{"body":%d}' % size) + b"".join(pieces),
        st.integers(0, 20) | st.sampled_from(_LENGTHS),
        st.lists(piece | lying, max_size=3),
    )
    whole = header.map(frame)
    junk = st.binary(max_size=12) | messages().flatmap(_cut)
    part = st.one_of(messages(), whole, whole, whole, announced, lying, junk)
    return st.lists(part, min_size=1, max_size=3).map(b"".join)


def _message(header: dict[str, object], body: bytes, ascii_only: bool) -> bytes:  # noqa: FBT001 - drawn
    announced = {**header, "body": len(body)} if body else header
    text = json.dumps(announced, ensure_ascii=ascii_only)
    pieces = [body[start : start + PIECE_BYTES] for start in range(0, len(body), PIECE_BYTES)]
    return frame(text.encode()) + b"".join(map(frame, pieces))


def _cut(message: bytes) -> st.SearchStrategy[bytes]:
    return st.integers(0, len(message)).map(lambda end: message[:end])


# -- policies ----------------------------------------------------------------------------------------
#
# Policy files as a tired person or a careless merge leaves them: good ones, and good ones with slips.
#
# `policies` writes the format `muniment-policy/1`; every text it draws loads. `near_policies` makes the
# slips: a character, a word of the schema for another, a value, a line lost or twice. What it draws may
# load or not.

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
"""Tables for the end of a file, each wrong by itself or beside another."""

_LETTERS: Final = "abdeilnoprstuvwy_-.\"'[]{}=#,*/ \n\t\r\0\ufeff\u202eé0"


@st.composite
def policies(draw: st.DrawFn) -> str:
    """The text of a policy that loads, named `own`, with the scope `user` among others."""
    scopes = ["user", *draw(st.lists(st.sampled_from(SCOPE_NAMES[1:]), unique=True))]
    head = ['schema = "muniment-policy/1"', 'name = "own"', "[scopes]"]
    trusts = st.sampled_from(["owner", "workspace", "agent", "external"])
    head += [f'{scope} = {{ trust = "{draw(trusts)}" }}' for scope in scopes]
    within = st.builds("/{}/{}".format, st.sampled_from([*scopes, "*"]), st.sampled_from(ALLOWED))
    tables = draw(_rules("allow", st.sampled_from(VERBS), within | st.just("/**")))
    tables += draw(_rules("deny", st.sampled_from([*VERBS, "*"]), st.sampled_from(DENIED)))
    return "\n".join([*head, *draw(st.permutations(tables + draw(_terms()))), ""])


def near_policies(sources: Sequence[str] = ()) -> st.SearchStrategy[str]:
    """The text of a policy with one to three slips.

    Args:
        sources: policies to begin with, such as the ones that are in use; `policies()` if empty.
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
    """Tables of a policy other than rules; each may be missing."""
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
    # TOML takes no table twice: the later of two with one name goes.
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
    """A wrong line at the top, a wrong table at the end, or a table lost."""
    lost = st.sampled_from(re.findall(r"^\[.*\n(?:[^\[].*\n)*", text, re.MULTILINE) or [""])
    wrong = [f"{text}\n{table}\n" for table in TABLES] + [f"{line}\n{text}" for line in HEAD_LINES]
    return st.sampled_from(wrong) | lost.map(lambda table: text.replace(table, "", 1))


def _whole(text: str) -> st.SearchStrategy[str]:
    """The text in another form, doubled, or cut off."""
    crlf, cr = text.replace("\n", "\r\n"), text.replace("\n", "\r")
    cut = st.integers(0, len(text)).map(lambda end: text[:end])
    return st.sampled_from([crlf, "\ufeff" + text, cr, text + text]) | cut


def _with_slip(draw: st.DrawFn, text: str) -> str:
    """A character gone, twice, another, or changed places with its neighbour."""
    at = draw(st.integers(0, max(0, len(text) - 1)))
    before, here, after, rest = text[:at], text[at : at + 1], text[at + 1 : at + 2], text[at + 2 :]
    other: str = draw(st.sampled_from(_LETTERS))
    return before + draw(st.sampled_from([after, here * 2 + after, after + here, other + after])) + rest


def _with_other(draw: st.DrawFn, text: str, pattern: str, others: Sequence[str]) -> str:
    """One of the places where `pattern` is found, with one of `others` in it."""
    found = list(re.finditer(pattern, text))
    if not found:
        return text
    match = draw(st.sampled_from(found))
    other = draw(st.sampled_from(list(others)))
    return f"{text[: match.start()]}{other}{text[match.end() :]}"


def _with_line(draw: st.DrawFn, text: str) -> str:
    """A line gone, twice, commented out, somewhere else, or followed by one of the schema."""
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
