"""The throwaway directories of one case: built from its `setup`, and photographed before and after.

    CASE/tree/user, CASE/tree/project           the scope roots
    CASE/tree/outside, CASE/tree/user-evil      hold secret.md with the canary; not to be read or changed
    CASE/aside                                  what `replace` took out of the tree, decoys of `swap`
    CASE/state, CASE/policy.toml, CASE/log      for the subject, outside the tree

Everything is done from the description of the corpus (`README.md`) and shares no code with any subject.
"""

from __future__ import annotations

import base64
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from muniment.testing.race import Swap, make_decoy
from muniment.testing.witness import Photograph, photograph

ROOTS: Final = ("user", "project")
"""Scope roots."""

EVERYTHING: Final = ("", "/", "/memories", "/memories/")
"""The paths of all scopes together."""

FORBIDDEN: Final = ("outside", "user-evil")
"""Trees that nothing may read or change."""

_PLACEHOLDER: Final = re.compile(r"\{\{|\}\}|\{(user|project|outside|stage)\}")

Operation = Mapping[str, Any]


class Stage:
    """One case's directories.

    Args:
        directory: where to build; must not exist.
        canary: the text that must not leave the forbidden trees.

    Attributes:
        tree: what the operations build, and all that is photographed.
        outside: the forbidden tree that attacks aim at.
        aside: on the same file system, out of the subject's reach.
        state: an empty directory for the subject.
        policy: where the subject may put its policy.
        log: where a driver sends the standard streams.
    """

    def __init__(self, directory: Path, canary: str) -> None:
        self.directory, self.canary = directory, canary
        self.tree, self.aside = directory / "tree", directory / "aside"
        self.state, self.policy, self.log = directory / "state", directory / "policy.toml", directory / "log"
        self.outside = self.tree / "outside"
        directory.mkdir(parents=True)
        for made in (self.tree, self.aside, self.state):
            made.mkdir(mode=0o700)
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
        OPERATIONS[operation["op"]](self, operation)

    def put_aside(self, path: Path) -> Path:
        """Move `path` out of the tree."""
        place = self.aside / str(len(list(self.aside.iterdir())))
        path.rename(place)
        return place

    def swap(self, operation: Operation) -> Swap:
        """The attacker of a race; the decoy is made, and waits aside."""
        path = self.path(operation["path"])
        target = self.expand(operation["target"])
        return Swap(path, make_decoy(self.aside / f"swap-{path.name}", operation["kind"], target))

    def photograph(self) -> Photograph:
        """Everything that is in the tree, by paths such as `user/a.md`."""
        return photograph({path.name: path for path in self.tree.iterdir()})

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
    path = stage.path(operation["path"])
    stage.put_aside(path)
    if operation["kind"] == "mkdir":
        path.mkdir(mode=0o700)
    else:
        make_decoy(path, operation["kind"], stage.expand(operation["target"]))


def _rmdir(stage: Stage, operation: Operation) -> None:
    stage.path(operation["path"]).rmdir()


OPERATIONS: Final[Mapping[str, Callable[[Stage, Operation], None]]] = {
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
