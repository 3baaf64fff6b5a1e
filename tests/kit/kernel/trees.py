"""Throwaway trees, and an oracle over them that shares no code with `muniment.kernel`."""

import os
from dataclasses import dataclass
from pathlib import Path

from kit.paths import at
from muniment.kernel.root import Root
from muniment.kernel.syscalls import Openat2Resolver
from muniment.kernel.walk import WalkResolver

CANARY = "canary-0b5e1d"
"""In every name and every file outside the root: no result may contain it."""

RESOLVERS = {"openat2": Openat2Resolver(), "walk": WalkResolver()}


def _of_text(method):
    return lambda root, rel: method(root, at(root.scope, rel))


OPERATIONS = {
    "read": _of_text(Root.read_bytes),
    "list": _of_text(Root.list_directory),
    "examine": _of_text(Root.examine),
}
"""Operations on a path of a root, with text arguments that are converted first."""


class Failing:
    """A resolver on a system that fails with an error, always or for some paths."""

    name = "failing"

    def __init__(self, errors, honest=None):
        self.errors, self.honest = errors, honest

    def open(self, dir_fd, path, purpose):
        number = self.errors if isinstance(self.errors, int) else self.errors.get(path)
        if number:
            raise OSError(number, os.strerror(number))
        return self.honest.open(dir_fd, path, purpose)


@dataclass(frozen=True)
class Trees:
    """`inside` is the root; `outside` is next to it, `other` is another scope."""

    inside: Path
    outside: Path
    other: Path

    def root(self, resolver):
        return Root("user", os.open(self.inside, os.O_PATH | os.O_DIRECTORY), RESOLVERS[resolver])


def plant(base):
    """Create an ordinary tree inside, and one outside in which everything contains the canary."""
    trees = Trees(base / "inside", base / "outside", base / "other")
    (trees.inside / "topic" / "deep").mkdir(parents=True)
    (trees.inside / "note.md").write_text("inside note")
    (trees.inside / "topic" / "one.md").write_text("inside one")
    (trees.inside / "topic" / "deep" / "two.md").write_text("inside two")
    (trees.inside / "folder.md").mkdir()
    for directory in (trees.outside, trees.other):
        (directory / f"{CANARY}-dir").mkdir(parents=True)
        for rel in (f"{CANARY}.md", f"{CANARY}-dir/{CANARY}.md", "note.md"):
            (directory / rel).write_text(f"{CANARY} {rel}")
    return trees


# Name of the link, its target, and a path through it.
LINKS = {
    "a relative link to a file": ("link.md", f"../outside/{CANARY}.md", "link.md"),
    "an absolute link to a file": ("link.md", f"{{outside}}/{CANARY}.md", "link.md"),
    "a link to a file of this root": ("link.md", "note.md", "link.md"),
    "a link to a directory": ("dir", "{outside}", "dir"),
    "a file under a link to a directory": ("dir", "../outside", f"dir/{CANARY}.md"),
    "a directory under a link to a directory": ("dir", "../outside", f"dir/{CANARY}-dir"),
    "a link in a deeper directory": ("topic/dir", "{outside}", "topic/dir/note.md"),
    "a chain of links": ("first.md", "second.md", "first.md"),
    "a dangling link": ("gone.md", "nowhere", "gone.md"),
    "a dangling link outside": ("gone.md", "{outside}/new.md", "gone.md"),
    "a link to itself": ("loop.md", "loop.md", "loop.md"),
    "a link to the parent": ("up", "..", f"up/outside/{CANARY}.md"),
    "a link to the root itself": ("here", ".", "here/note.md"),
    "a link to another scope": ("other", "{other}", f"other/{CANARY}.md"),
    "a link to a magic link": ("magic", "/proc/self/cwd", "magic"),
    "a name under a magic link": ("magic", "/proc/self/root", "magic/note.md"),
}


def plant_link(trees, shape):
    """Create one of `LINKS`; return the path through it."""
    name, target, rel = LINKS[shape]
    (trees.inside / name).symlink_to(target.format(outside=trees.outside, other=trees.other))
    if shape == "a chain of links":
        (trees.inside / "second.md").symlink_to(trees.outside / f"{CANARY}.md")
    return rel
