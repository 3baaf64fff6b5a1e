"""The throwaway directories of one case: built from its `setup`, and photographed before and after.

    CASE/tree/user, CASE/tree/project           the scope roots
    CASE/tree/outside, CASE/tree/user-evil      hold secret.md with the canary; not to be read or changed
    CASE/aside                                  what `replace` took out of the tree, decoys of `swap`
    CASE/state, CASE/policy.toml, CASE/log      for the subject, outside the tree

Everything is done from the description of the corpus (`README.md`) and shares no code with any subject.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Protocol, Self

from muniment.testing.race import Swap, make_decoy
from muniment.testing.witness import Photograph, photograph

# -- case --------------------------------------------------------------------------------------------
#
# The cases as they stand in the files beside this one.
#
# `escapes.json` is a published set, kept byte for byte; `own.json` holds what this project added to it.

FILES: Final = ("escapes.json", "own.json")

Case = Mapping[str, Any]
"""One case, in the format of `README.md`."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Cases by id, and the text that must not come out."""

    canary: str
    cases: Mapping[str, Case]


def load_corpus(*names: str) -> Corpus:
    """The shipped cases.

    Args:
        names: of the files to take them from, all of `FILES` if none is named.

    Raises:
        ValueError: the files do not belong together: they have two canaries, or an id twice.
    """
    documents = [json.loads(files(__package__).joinpath(name).read_text("utf-8")) for name in names or FILES]
    cases = [case for document in documents for case in document["cases"]]
    by_id = {case["id"]: case for case in cases}
    if len(by_id) != len(cases):
        raise ValueError("an id stands twice")
    (canary, *others) = {document["canary"] for document in documents}
    if others:
        raise ValueError("the files have several canaries")
    return Corpus(canary, by_id)


# -- failure -----------------------------------------------------------------------------------------
#
# What can be wrong with a case: the kind, for whoever compares tools, and a line for whoever reads it.


class CaseOutcome(StrEnum):
    """What became of a case, the worst first."""

    ESCAPED = "escaped"
    """Something outside the roots was changed, created or replaced, or in a scope that was not named."""
    LEAKED = "leaked"
    """The canary or a host path came out, or a forbidden file was read."""
    HUNG = "hung"
    """It did not end in time, and was ended."""
    CRASHED = "crashed"
    """The tool died, or answered what is none."""
    BROKEN = "broken"
    """An ordinary call does not work."""
    DIFFERS = "differs"
    """Stricter or laxer than the corpus asks, but nothing left the roots."""
    SKIPPED = "skipped"
    """The tool cannot express it, or the attacker of a race was not at work: nothing is known."""
    HELD = "held"
    """As the corpus asks."""


BAD: Final = frozenset({CaseOutcome.ESCAPED, CaseOutcome.LEAKED, CaseOutcome.HUNG, CaseOutcome.CRASHED})
"""What no tool may come to that is put to the test."""


class Kind(StrEnum):
    """What sort of thing went wrong; `judging.py` says which, `running.py` the last three.

    Attributes:
        means: what a case comes to by it, of a tool that promises all that the corpus asks.
    """

    means: CaseOutcome

    def __new__(cls, word: str, means: CaseOutcome = CaseOutcome.HELD) -> Self:
        """A kind by its word; `means` stands at each member."""
        kind = str.__new__(cls, word)
        kind._value_, kind.means = word, means
        return kind

    LEFT = "left", CaseOutcome.ESCAPED
    """A forbidden tree changed, or something stands beside the roots."""
    DETACHED = "detached", CaseOutcome.DIFFERS
    """A file in a forbidden tree has a name less: a hard link to it in a root was replaced or removed."""
    READ = "read", CaseOutcome.LEAKED
    """A forbidden tree was read or listed."""
    LOOKED = "looked", CaseOutcome.DIFFERS
    """The same, but while the subject was started: whoever executes a program looks around."""
    CROSSED = "crossed", CaseOutcome.ESCAPED
    """A scope changed that no call named."""
    STRAYED = "strayed", CaseOutcome.DIFFERS
    """In a scope that was named something changed that was not to be: another file, or at another answer."""
    CANARY = "canary", CaseOutcome.LEAKED
    """The canary came out, or stands in a file or in state that was written."""
    PATH = "path", CaseOutcome.LEAKED
    """A host path came out that did not go in."""
    ALLOWED = "allowed", CaseOutcome.DIFFERS
    """A call succeeded that had to be refused."""
    REFUSED = "refused", CaseOutcome.BROKEN
    """A call was refused, or a commit failed, that had to succeed."""
    WORDING = "wording", CaseOutcome.DIFFERS
    """A refusal is of another verdict or code than the corpus asks for."""
    EFFECT = "effect", CaseOutcome.BROKEN
    """What a call was to bring about is not there."""
    MANNER = "manner", CaseOutcome.DIFFERS
    """Something is there that was not to be, or in another form: names, modes, sizes, times."""
    INDEX = "index", CaseOutcome.DIFFERS
    """The generated index is missing or not what it should be."""
    NO_RACE = "no-race", CaseOutcome.SKIPPED
    """The attacker of a race was not at work."""
    INEXPRESSIBLE = "inexpressible", CaseOutcome.SKIPPED
    """The subject has no such call; nothing is known."""
    HUNG = "hung", CaseOutcome.HUNG
    """It did not end."""
    DIED = "died", CaseOutcome.CRASHED
    """It ended without an answer, or answered what is none."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that is wrong with how a subject handles a case.

    Attributes:
        kind: its sort.
        text: what was seen, on one line but for tracebacks.
    """

    kind: Kind
    text: str

    def __str__(self) -> str:
        return self.text


# -- stage -------------------------------------------------------------------------------------------

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


def _socket(stage: Stage, operation: Operation) -> None:
    path = stage.path(operation["path"])
    parent = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"/proc/self/fd/{parent}/{path.name}")  # A socket's own path may have 107 bytes only.
    finally:
        os.close(parent)


def _rename(stage: Stage, operation: Operation) -> None:
    stage.path(operation["path"]).rename(stage.path(operation["to"]))


def _replace(stage: Stage, operation: Operation) -> None:
    path = stage.path(operation["path"])
    stage.put_aside(path)
    if operation["kind"] == "mkdir":
        path.mkdir(mode=0o700)
    else:
        make_decoy(path, operation["kind"], stage.expand(operation["target"]))


OPERATIONS: Final[Mapping[str, Callable[[Stage, Operation], None]]] = {
    "mkdir": lambda stage, given: stage.path(given["path"]).mkdir(parents=True, exist_ok=True),
    "write": _write,
    "write_many": _write_many,
    "symlink": lambda stage, given: stage.path(given["path"]).symlink_to(stage.expand(given["target"])),
    "hardlink": lambda stage, given: stage.path(given["path"]).hardlink_to(stage.path(given["target"])),
    "fifo": lambda stage, given: os.mkfifo(stage.path(given["path"]), 0o600),
    "socket": _socket,
    "chmod": lambda stage, given: stage.path(given["path"]).chmod(given["mode"]),
    "rename": _rename,
    "replace": _replace,
    "rmdir": lambda stage, given: stage.path(given["path"]).rmdir(),
}


# -- subject -----------------------------------------------------------------------------------------
#
# What a memory tool has to look like for the corpus: a small adapter of three methods.


@dataclass(frozen=True, slots=True)
class Answer:
    """What a subject says to one call.

    Attributes:
        verdict: `allow`, `deny` (refused as outside or forbidden) or `error` (an ordinary tool error).
        code: the stable code of a refusal or error, one of `judging.CODES`; None where allowed.
        text: what the model would see.
        everything: all that the caller gets to see; it is searched for the canary.
    """

    verdict: str
    code: str | None
    text: str
    everything: object


@dataclass(frozen=True, slots=True)
class Committed:
    """How a commit ended.

    Attributes:
        error: the code of the error that it raised, if it did.
        everything: change-set, results, messages; searched for the canary.
    """

    error: str | None
    everything: object


class Inexpressible(Exception):
    """Raised by a subject for a call that its tool has no way to make: the case says nothing about it."""


class Subject(Protocol):
    """Five tools (`read_file`, `grep`, `ls`, `write_file`, `edit`) over the two roots of a stage.

    A tool that writes at once implements `commit` by what it does after a session, such as its index, or
    by nothing.

    Attributes:
        commits_often: whether calls may follow a commit.
    """

    commits_often: bool

    def call(self, tool: str, arguments: Any) -> Answer:
        """Make one call. Arguments are whatever a case holds, also no object at all.

        Raises:
            Inexpressible: the tool has no such call.
            Exception: any other ends the case; it counts as a crash.
        """
        ...

    def commit(self) -> Committed:
        """Land what was proposed."""
        ...

    def close(self) -> str:
        """End it; everything that it logged."""
        ...


OpenSubject = Callable[[Stage, Case], Subject]
"""Binds a new subject to the roots of a stage, with the policy that the case asks for. It may keep its state
in `Stage.state` and its policy in `Stage.policy`; nothing in `Stage.tree` may change."""


# -- privileges --------------------------------------------------------------------------------------
#
# Makes root obey file modes, which some cases rest on: gives up the capabilities that override them.
#
# They leave the effective, permitted and inheritable sets, and the bounding set as well, so that no program
# that is executed from here gets them back. For anyone but root this changes nothing.

_OVERRIDES: Final = {"CAP_DAC_OVERRIDE": 1, "CAP_DAC_READ_SEARCH": 2, "CAP_FOWNER": 3}
_PR_CAPBSET_DROP: Final = 24
_VERSION_3: Final = 0x20080522
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def obey_file_modes() -> None:
    """Give the capabilities up, for this process and all that it executes.

    Raises:
        OSError: the kernel refuses.
    """
    if os.geteuid() != 0:
        return
    for number in _OVERRIDES.values():
        _require(_LIBC.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0))
    header, sets = _Header(_VERSION_3, 0), (_Sets * 2)()
    _require(_LIBC.capget(ctypes.byref(header), sets))
    kept = 0xFFFFFFFF & ~sum(1 << number for number in _OVERRIDES.values())
    sets[0].effective &= kept
    sets[0].permitted &= kept
    sets[0].inheritable &= kept
    _require(_LIBC.capset(ctypes.byref(header), sets))


def _require(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
