"""The throwaway directories of one case: built from its `setup`, and photographed before and after.

    CASE/tree/user, CASE/tree/project           the scope roots
    CASE/tree/outside, CASE/tree/user-evil      hold secret.md with the canary; not to be read or changed
    CASE/aside                                  what `replace` and `swap` took out of the tree
    CASE/state, CASE/policy.toml, CASE/log      for the subject, outside the tree

Everything is done from the description of the corpus (README.md) and shares no code with any subject.
"""

from __future__ import annotations

import base64
import os
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from corpus.photograph import FORBIDDEN, ROOTS, Photograph, photograph

_PLACEHOLDER: Final = re.compile(r"\{\{|\}\}|\{(user|project|outside|stage)\}")

Operation = Mapping[str, Any]


class Stage:
    """One case's directories.

    Args:
        directory: where to build; must not exist.
        canary: the text that must not leave the forbidden trees.
    """

    def __init__(self, directory: Path, canary: str) -> None:
        self.directory, self.canary = directory, canary
        self.tree, self.aside = directory / "tree", directory / "aside"
        self.state, self.policy, self.log = directory / "state", directory / "policy.toml", directory / "log"
        self.outside = self.tree / "outside"
        directory.mkdir(parents=True)
        for name in (self.tree, self.aside, self.state):
            name.mkdir(mode=0o700)
        for name in (*ROOTS, *FORBIDDEN):
            self.scope(name).mkdir(mode=0o700)
        for name in FORBIDDEN:
            (self.scope(name) / "secret.md").write_text(f"{canary}\n")

    def scope(self, name: str) -> Path:
        """The root of a scope, or a forbidden tree."""
        return self.tree / name

    def expand(self, value: Any) -> Any:
        """`value` with `$repeat` carried out and placeholders filled in, at any depth."""
        if isinstance(value, str):
            return _PLACEHOLDER.sub(self._placeholder, value)
        if isinstance(value, Mapping):
            if "$repeat" in value:
                return self.expand(repeated(value))
            return {name: self.expand(part) for name, part in value.items()}
        if isinstance(value, Sequence):
            return [self.expand(part) for part in value]
        return value

    def path(self, text: str) -> Path:
        """A path of an operation or check."""
        return Path(self.expand(text))

    def prepare(self, operation: Operation) -> None:
        """Carry out one operation, except `swap`.

        Raises:
            KeyError: it is none of the corpus.
        """
        _OPERATIONS[operation["op"]](self, operation)

    def put_aside(self, path: Path) -> Path:
        """Move `path` out of the tree."""
        place = self.aside / str(len(list(self.aside.iterdir())))
        path.rename(place)
        return place

    def photograph(self, *, age: bool) -> Photograph:
        """Every name beneath the tree; no link is followed.

        Args:
            age: also set all access times back, so that the next photograph shows who was read.
        """
        return photograph(self.tree, age=age)

    def _placeholder(self, match: re.Match[str]) -> str:
        if match[1] == "stage":
            return str(self.tree)
        return str(self.scope(match[1])) if match[1] else match[0][0]


def repeated(value: Any) -> Any:
    """`value` with `$repeat` carried out, if it is one."""
    if isinstance(value, Mapping) and "$repeat" in value:
        text, count = value["$repeat"]
        return f"{value.get('$pre', '')}{text * count}{value.get('$post', '')}"
    return value


# -- operations ------------------------------------------------------------------------------------


def _mkdir(stage: Stage, operation: Operation) -> None:
    stage.path(operation["path"]).mkdir(parents=True, exist_ok=True)


def _write(stage: Stage, operation: Operation) -> None:
    path = stage.path(operation["path"])
    path.parent.mkdir(parents=True, exist_ok=True)
    if "sparse" in operation:
        with path.open("wb") as file:
            file.truncate(operation["sparse"])
    elif "content_b64" in operation:
        path.write_bytes(base64.b64decode(operation["content_b64"]))
    else:
        path.write_bytes(repeated(operation["content"]).encode("utf-8", "surrogateescape"))


def _write_many(stage: Stage, operation: Operation) -> None:
    pattern = str(stage.path(operation["path"]))
    for number in range(operation["count"]):
        Path(pattern % number).write_text(operation["content"])


def _symlink(stage: Stage, operation: Operation) -> None:
    stage.path(operation["path"]).symlink_to(stage.expand(operation["target"]))


def _hardlink(stage: Stage, operation: Operation) -> None:
    stage.path(operation["path"]).hardlink_to(stage.path(operation["target"]))


def _fifo(stage: Stage, operation: Operation) -> None:
    os.mkfifo(stage.path(operation["path"]), 0o600)


def _socket(stage: Stage, operation: Operation) -> None:
    path = stage.path(operation["path"])
    parent = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"/proc/self/fd/{parent}/{path.name}")  # A socket's own path may have 107 bytes only.
    finally:
        os.close(parent)


def _chmod(stage: Stage, operation: Operation) -> None:
    stage.path(operation["path"]).chmod(operation["mode"])


def _rename(stage: Stage, operation: Operation) -> None:
    stage.path(operation["path"]).rename(stage.path(operation["to"]))


def _replace(stage: Stage, operation: Operation) -> None:
    stage.put_aside(stage.path(operation["path"]))
    make_kind(stage, operation, stage.path(operation["path"]))


def _rmdir(stage: Stage, operation: Operation) -> None:
    stage.path(operation["path"]).rmdir()


def make_kind(stage: Stage, operation: Operation, path: Path) -> None:
    """Make at `path` what `replace` or `swap` puts in the place of a name."""
    target = stage.expand(operation["target"])
    match operation["kind"]:
        case "symlink":
            path.symlink_to(target)
        case "hardlink":
            path.hardlink_to(target)
        case "fifo":
            os.mkfifo(path, 0o600)
        case "mkdir":
            path.mkdir(mode=0o700)
        case other:
            raise KeyError(other)


_OPERATIONS: Final = {
    "mkdir": _mkdir,
    "write": _write,
    "write_many": _write_many,
    "symlink": _symlink,
    "hardlink": _hardlink,
    "fifo": _fifo,
    "socket": _socket,
    "chmod": _chmod,
    "rename": _rename,
    "replace": _replace,
    "rmdir": _rmdir,
}
