"""The throwaway directories of one case: created from its `setup`, and recorded before and after the calls.

    CASE/tree/user, CASE/tree/project           the scope roots
    CASE/tree/outside, CASE/tree/user-evil      contain secret.md with the canary; no reads or changes allowed
    CASE/aside                                  files that `replace` moved out of the tree, decoys of `swap`
    CASE/state, CASE/policy.toml, CASE/log      for the subject, outside the tree

The module implements the description of the corpus (`README.md`) and shares no code with any subject.
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
from muniment.testing.snapshots import Snapshot, take_snapshot

# -- case --------------------------------------------------------------------------------------------
#
# The cases in the files of this directory. `escapes.json` is a published set, unchanged byte for byte;
# `own.json` contains the cases that this project added.

FILES: Final = ("escapes.json", "own.json")

Case = Mapping[str, Any]
"""One case, in the format that `README.md` describes."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """The cases by id, and the canary: the text that must not occur in any output."""

    canary: str
    cases: Mapping[str, Case]


def load_corpus(*names: str) -> Corpus:
    """Return the cases that are part of this package.

    Args:
        names: names of the files to load; default: all of `FILES`.

    Raises:
        ValueError: the files contain different canaries, or the same id twice.
    """
    documents = [json.loads(files(__package__).joinpath(name).read_text("utf-8")) for name in names or FILES]
    cases = [case for document in documents for case in document["cases"]]
    by_id = {case["id"]: case for case in cases}
    if len(by_id) != len(cases):
        raise ValueError("duplicate id: each case needs its own")
    (canary, *others) = {document["canary"] for document in documents}
    if others:
        raise ValueError("the files have different canaries")
    return Corpus(canary, by_id)


# -- failure -----------------------------------------------------------------------------------------
#
# Failures of a case: the kind, to compare tools, and a line of text for the reader.


class CaseOutcome(StrEnum):
    """The outcome of a case; the worst outcome is first."""

    ESCAPED = "escaped"
    """A file outside the roots, or in a scope that no call named, was changed, created or replaced."""
    LEAKED = "leaked"
    """The output contains the canary or a host path, or a forbidden file was read."""
    HUNG = "hung"
    """The case did not end in time and was killed."""
    CRASHED = "crashed"
    """The tool died, or sent an invalid response."""
    BROKEN = "broken"
    """An ordinary call does not work."""
    DIFFERS = "differs"
    """The tool is stricter or less strict than the corpus requires, without an escape."""
    SKIPPED = "skipped"
    """The result is unknown: the tool does not support a call of the case, or the attacker of a race did not
    run.
    """
    PASSED = "held"
    """The tool did what the corpus requires."""


BAD: Final = frozenset({CaseOutcome.ESCAPED, CaseOutcome.LEAKED, CaseOutcome.HUNG, CaseOutcome.CRASHED})
"""Outcomes that no tested tool may have."""


class FailureKind(StrEnum):
    """The kind of a failure. `judging` reports most kinds; `driver` and `running` report the last three.

    Attributes:
        outcome: the outcome of a case with this failure, for a tool that promises everything in the corpus.
    """

    outcome: CaseOutcome

    def __new__(cls, word: str, means: CaseOutcome = CaseOutcome.PASSED) -> Self:
        """Create a kind.

        Args:
            word: value of the kind.
            means: the outcome of a case with this failure.
        """
        kind = str.__new__(cls, word)
        kind._value_, kind.outcome = word, means
        return kind

    LEFT = "left", CaseOutcome.ESCAPED
    """A forbidden tree changed, or a new file exists next to the roots."""
    DETACHED = "detached", CaseOutcome.DIFFERS
    """A file in a forbidden tree has fewer hard links: a link to it in a root was replaced or removed."""
    READ = "read", CaseOutcome.LEAKED
    """A forbidden tree was read or listed."""
    READ_AT_START = "looked", CaseOutcome.DIFFERS
    """A forbidden tree was read or listed while the subject started."""
    CROSSED = "crossed", CaseOutcome.ESCAPED
    """A call changed a scope that it did not name."""
    STRAYED = "strayed", CaseOutcome.DIFFERS
    """A forbidden change in a scope that a call named: another file changed, or a file although no call was
    allowed.
    """
    CANARY = "canary", CaseOutcome.LEAKED
    """The canary is in the output, in a written file or in the state."""
    PATH = "path", CaseOutcome.LEAKED
    """The output contains a host path that was not in the input."""
    ALLOWED = "allowed", CaseOutcome.DIFFERS
    """A call succeeded that must be denied."""
    REFUSED = "refused", CaseOutcome.BROKEN
    """A call or commit failed that must succeed."""
    WORDING = "wording", CaseOutcome.DIFFERS
    """A denial has another verdict or code than the corpus requires."""
    EFFECT = "effect", CaseOutcome.BROKEN
    """A call succeeded, but without the required effect."""
    MANNER = "manner", CaseOutcome.DIFFERS
    """An unwanted side effect, or an effect with wrong names, modes, sizes or times."""
    INDEX = "index", CaseOutcome.DIFFERS
    """The generated index is missing or wrong."""
    NO_RACE = "no-race", CaseOutcome.SKIPPED
    """The attacker of a race did not run."""
    INEXPRESSIBLE = "inexpressible", CaseOutcome.SKIPPED
    """The subject does not support a call of the case, so the result is unknown."""
    HUNG = "hung", CaseOutcome.HUNG
    """The case did not end in time."""
    DIED = "died", CaseOutcome.CRASHED
    """The subject ended without a response, or sent an invalid response."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of a subject in a case.

    Attributes:
        kind: kind of the failure.
        text: description of the failure, in one line except for tracebacks.
    """

    kind: FailureKind
    text: str

    def __str__(self) -> str:
        return self.text


# -- stage -------------------------------------------------------------------------------------------

ROOTS: Final = ("user", "project")
"""Names of the scopes, each with a root."""

ALL_SCOPES_PATHS: Final = ("", "/", "/memories", "/memories/")
"""Paths that mean all scopes together."""

FORBIDDEN: Final = ("outside", "user-evil")
"""Names of the trees that must not be read or changed."""

_PLACEHOLDER: Final = re.compile(r"\{\{|\}\}|\{(user|project|outside|stage)\}")

Operation = Mapping[str, Any]


class Stage:
    """The directories of one case.

    Args:
        directory: the directory to create; must not exist.
        canary: the text that must not leave the forbidden trees.

    Attributes:
        tree: the directory with the roots and the forbidden trees; snapshots record everything in it.
        outside: the forbidden tree that attacks try to reach.
        aside: a directory on the same file system that the subject cannot reach.
        state: an empty directory for the subject.
        policy: path for the policy of the subject.
        log: path of the file for the standard streams, which a driver writes.
    """

    def __init__(self, directory: Path, canary: str) -> None:
        self.directory, self.canary = directory, canary
        self.tree, self.aside = directory / "tree", directory / "aside"
        self.state, self.policy, self.log = directory / "state", directory / "policy.toml", directory / "log"
        self.outside = self.tree / "outside"
        directory.mkdir(parents=True)
        for folder in (self.tree, self.aside, self.state):
            folder.mkdir(mode=0o700)
        for name in (*ROOTS, *FORBIDDEN):
            self.get_scope_path(name).mkdir(mode=0o700)
        for name in FORBIDDEN:
            (self.get_scope_path(name) / "secret.md").write_text(f"{canary}\n")

    def get_scope_path(self, name: str) -> Path:
        """Return the path of the root of a scope, or of a forbidden tree."""
        return self.tree / name

    def expand(self, value: Any) -> Any:
        """Return `value` with all `$repeat` and all placeholders replaced, at any depth."""
        if isinstance(value, str):
            return _PLACEHOLDER.sub(self._expand_placeholder, value)
        if isinstance(value, Mapping):
            if "$repeat" in value:
                return self.expand(expand_repeat(value))
            return {name: self.expand(part) for name, part in value.items()}
        if isinstance(value, Sequence):
            return [self.expand(part) for part in value]
        return value

    def resolve_path(self, text: str) -> Path:
        """Return the path that an operation or check contains, with its placeholders replaced."""
        return Path(self.expand(text))

    def prepare(self, operation: Operation) -> None:
        """Execute one operation of `setup`, except `swap`.

        Raises:
            KeyError: unknown operation.
        """
        OPERATIONS[operation["op"]](self, operation)

    def move_aside(self, path: Path) -> Path:
        """Move `path` out of the tree and return its new path."""
        new_path = self.aside / str(len(list(self.aside.iterdir())))
        path.rename(new_path)
        return new_path

    def create_swap(self, operation: Operation) -> Swap:
        """Create the decoy of a `swap` operation, and return the attacker of the race."""
        path = self.resolve_path(operation["path"])
        target = self.expand(operation["target"])
        return Swap(path, make_decoy(self.aside / f"swap-{path.name}", operation["kind"], target))

    def take_snapshot(self) -> Snapshot:
        """Return a snapshot of the tree, with paths such as `user/a.md`."""
        return take_snapshot({path.name: path for path in self.tree.iterdir()})

    def _expand_placeholder(self, match: re.Match[str]) -> str:
        if match[1] == "stage":
            return str(self.tree)
        return str(self.get_scope_path(match[1])) if match[1] else match[0][0]


def expand_repeat(value: Any) -> Any:
    """Return the text that `value` describes with `$repeat`; other values are returned unchanged."""
    if isinstance(value, Mapping) and "$repeat" in value:
        text, count = value["$repeat"]
        return f"{value.get('$pre', '')}{text * count}{value.get('$post', '')}"
    return value


# -- operations ------------------------------------------------------------------------------------


def _write_file(stage: Stage, operation: Operation) -> None:
    path = stage.resolve_path(operation["path"])
    path.parent.mkdir(parents=True, exist_ok=True)
    if "sparse" in operation:
        with path.open("wb") as file:
            file.truncate(operation["sparse"])
    elif "content_b64" in operation:
        path.write_bytes(base64.b64decode(operation["content_b64"]))
    else:
        path.write_bytes(expand_repeat(operation["content"]).encode("utf-8", "surrogateescape"))


def _write_files(stage: Stage, operation: Operation) -> None:
    pattern = str(stage.resolve_path(operation["path"]))
    for number in range(operation["count"]):
        Path(pattern % number).write_text(operation["content"])


def _create_socket(stage: Stage, operation: Operation) -> None:
    path = stage.resolve_path(operation["path"])
    parent = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"/proc/self/fd/{parent}/{path.name}")  # The path of a socket may have only 107 bytes.
    finally:
        os.close(parent)


def _rename_path(stage: Stage, operation: Operation) -> None:
    stage.resolve_path(operation["path"]).rename(stage.resolve_path(operation["to"]))


def _replace_path(stage: Stage, operation: Operation) -> None:
    path = stage.resolve_path(operation["path"])
    stage.move_aside(path)
    if operation["kind"] == "mkdir":
        path.mkdir(mode=0o700)
    else:
        make_decoy(path, operation["kind"], stage.expand(operation["target"]))


OPERATIONS: Final[Mapping[str, Callable[[Stage, Operation], None]]] = {
    "mkdir": lambda stage, given: stage.resolve_path(given["path"]).mkdir(parents=True, exist_ok=True),
    "write": _write_file,
    "write_many": _write_files,
    "symlink": lambda stage, given: stage.resolve_path(given["path"]).symlink_to(
        stage.expand(given["target"])
    ),
    "hardlink": lambda stage, given: stage.resolve_path(given["path"]).hardlink_to(
        stage.resolve_path(given["target"])
    ),
    "fifo": lambda stage, given: os.mkfifo(stage.resolve_path(given["path"]), 0o600),
    "socket": _create_socket,
    "chmod": lambda stage, given: stage.resolve_path(given["path"]).chmod(given["mode"]),
    "rename": _rename_path,
    "replace": _replace_path,
    "rmdir": lambda stage, given: stage.resolve_path(given["path"]).rmdir(),
}


# -- subject -----------------------------------------------------------------------------------------
#
# The interface of a memory tool in the corpus: an adapter with three methods.


@dataclass(frozen=True, slots=True)
class CallResult:
    """The response of a subject to one call.

    Attributes:
        verdict: `allow`, `deny` (outside or forbidden) or `error` (an ordinary tool error).
        code: the stable code of a denial or error, one of `judging.CODES`; None if the call is allowed.
        text: the text that the model would see.
        full_output: all output for the caller; it is searched for the canary.
    """

    verdict: str
    code: str | None
    text: str
    full_output: object


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """The result of a commit.

    Attributes:
        error: the code of the error with which the commit failed; None: it succeeded.
        full_output: change set, results and messages; they are searched for the canary.
    """

    error: str | None
    full_output: object


class UnsupportedCall(Exception):
    """Raised by a subject for a call that its tool does not support; the result is then unknown."""


class Subject(Protocol):
    """An adapter for a memory tool, bound to the two roots of a stage.

    The tool offers `read_file`, `grep`, `ls`, `write_file` and `edit`. For a tool that writes immediately,
    `commit` does the work that follows a session, such as updating its index, or does nothing.

    Attributes:
        commits_often: whether calls may follow a commit.
    """

    commits_often: bool

    def call(self, tool: str, arguments: Any) -> CallResult:
        """Make one call.

        Args:
            tool: name of the tool.
            arguments: the arguments as in the case; they need not be an object.

        Raises:
            UnsupportedCall: the tool does not support this call.
            Exception: any other exception ends the case, and counts as a crash.
        """
        ...

    def commit(self) -> CommitOutcome:
        """Commit the pending changes of the tool, and return the result."""
        ...

    def close(self) -> str:
        """Stop the tool and return its complete log."""
        ...


OpenSubject = Callable[[Stage, Case], Subject]
"""Binds a new subject to the roots of a stage, with the policy of the case. The subject may store its state
in `Stage.state` and its policy in `Stage.policy`, and must not change `Stage.tree`.
"""


# -- privileges --------------------------------------------------------------------------------------
#
# Make root obey file modes, which some cases depend on: drop the capabilities that override them. They are
# removed from the effective, permitted and inheritable sets and from the bounding set, so that no executed
# program gets them back. For any other user this changes nothing.

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
    """Drop the capabilities that override file modes, for this process and all programs that it executes.

    Does nothing if the user is not root.

    Raises:
        OSError: the Linux kernel rejects the call.
    """
    if os.geteuid() != 0:
        return
    for number in _OVERRIDES.values():
        _check_result(_LIBC.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0))
    header, sets = _Header(_VERSION_3, 0), (_Sets * 2)()
    _check_result(_LIBC.capget(ctypes.byref(header), sets))
    mask = 0xFFFFFFFF & ~sum(1 << number for number in _OVERRIDES.values())
    sets[0].effective &= mask
    sets[0].permitted &= mask
    sets[0].inheritable &= mask
    _check_result(_LIBC.capset(ctypes.byref(header), sets))


def _check_result(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
