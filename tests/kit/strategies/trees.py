"""Trees that a hostile process leaves in a scope root: links, hard links, special files, odd names.

A tree is plain data (`Tree`), so that failing examples are readable; `plant` builds it in a throwaway
directory of the test. No code here follows a link, and links point to real system directories only through
`/proc/self`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, assert_never

from hypothesis import strategies as st

from kit.strategies.entries import entry_texts


@dataclass(frozen=True, slots=True)
class File:
    """A regular file."""

    content: bytes


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link.

    Attributes:
        target: the text of the link. `{outside}` becomes the absolute path of the outside directory, `{up}`
            the relative path from the link.
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
    """A named pipe without a writer: opening it for reading blocks."""


@dataclass(frozen=True, slots=True)
class Socket:
    """A socket without a listener."""


Node: TypeAlias = "File | Link | HardLink | Fifo | Socket | Tree"
Tree: TypeAlias = Mapping[str, Node]
"""A directory: nodes by name. Names that are not UTF-8 contain surrogate escapes."""

TARGETS: Final = (
    *("{outside}", "{outside}/secret.md", "{outside}/new.md", "{up}", "{up}/secret.md", "{up}/new.md"),
    *("note.md", "topic", "topic/note.md", "./topic", "../note.md", "../project", "../project/note.md"),
    *("nowhere", "nowhere/else.md", ".", "..", "../..", "topic/..", "topic/../note.md", "/proc/self/cwd"),
    *("/proc/self/root", "/proc/self/fd/3", "link.md", "link", "note.md/", "topic//note.md", "\udcff"),
    "a\nb",
)
"""Inside, outside, another scope, dangling, loops through the names above, magic links, and odd spellings."""

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
"""Bytes and repetitions: more than one result of a tool shows."""


def trees(*, max_depth: int = 3) -> st.SearchStrategy[Tree]:
    """Return trees of a few names, half of them ordinary.

    Args:
        max_depth: maximum nesting of directories, including the tree itself.
    """
    return _trees(max_depth).flatmap(_with_hard_links)


def plant(tree: Tree, directory: Path, *, outside: Path) -> None:
    """Build `tree` in `directory`, which is created as private if missing.

    Args:
        tree: what to build.
        directory: a throwaway directory without any of the tree's names.
        outside: a throwaway directory with a file `secret.md`, on the same file system.

    Raises:
        OSError: a name exists, or the system denies a call.
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
        # At the end, because the targets must exist; `/` would otherwise start from the system root.
        first = Path(target.replace("{outside}", str(outside)))
        os.link(directory / first, path, follow_symlinks=False)


def paths_in(tree: Tree) -> Sequence[str]:
    """Return the paths of all nodes of `tree`, with directories, in order."""
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
    # Existing names stay: a hard link must not replace its target.
    return {**draw(st.dictionaries(names, targets, max_size=2)), **tree}
