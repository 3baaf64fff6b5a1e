"""Provide the memory tool of the `anthropic` SDK (`memory_20250818`): `muniment[anthropic]`.

    from anthropic import Anthropic
    from muniment.integrations.anthropic import MunimentMemoryTool

    with muniment.open(".") as memory:
        tool = MunimentMemoryTool(memory)
        Anthropic().beta.messages.tool_runner(..., tools=[tool]).until_done()

M1 The policy judges each command. A command that changes files is one commit: it is applied completely or not
   at all, and can be undone.
M2 Every call returns a text or raises the SDK's `ToolError`: its runner would show the model the `repr` of
   any other exception. Neither contains a host path, nor text of a file that the model may not read.
M3 A created text is returned by `view` byte for byte: a model sees bodies of entries, and only code writes
   the front matter (`threat-model/decisions/0040-expose-entry-bodies-to-memory-tools.md`).
M4 A written text has at most the trust that the caller gives, and at most the lowest trust of the files that
   the same object has viewed before: create one object for each conversation.
M5 A rejected command, also a path escape, has no effect on the next command.

Texts are those of the tool's documentation, and of the SDK's own `BetaLocalFilesystemMemoryTool` if the two
differ. Every displayed line of a file starts with its number, so that text of a file cannot look like text of
the tool. Attacked in tests/attacks/test_memory_tool.py.
"""

from __future__ import annotations

import posixpath
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field

from muniment.api import Memory
from muniment.cancelling import Cancel, in_thread
from muniment.content.gates import encode
from muniment.errors import (
    PathEscape,
    PendingReview,
    Refused,
    StoreConflict,
    printable,
)
from muniment.integrations.telling import ToolProblem, answering, arguments_of
from muniment.kernel.cancel import Patience
from muniment.kernel.change import FileChange
from muniment.kernel.names import MAX_FILE_BYTES, MAX_PATH_BYTES, RelPath, Trust, Verb, joined
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, fold
from muniment.kernel.root import Kind
from muniment.operations.entries import Entries, HeldEntry, with_front
from muniment.policy.frozen import Frozen
from muniment.sandbox.sandbox import WAIT_SECONDS

try:
    from anthropic.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool, ToolError
    from anthropic.types.beta import BetaCacheControlEphemeralParam
except ImportError:
    raise ImportError(
        "this needs anthropic 2.14 or later of its 2.x: pip install 'muniment[anthropic]'"
    ) from None

ROOT: Final = "/memories"

MAX_LINES: Final = 999_999
"""Maximum lines of a displayed file; source: the documentation of the tool."""

MAX_LISTED: Final = 500
"""Maximum lines of a listing, as for `ls`."""

LEVELS: Final = 2
"""Directory levels of a listing; source: the documentation of the tool."""

SNIPPET_LINES: Final = 2
"""Displayed lines before and after a changed one."""

_OF_THE_TOOL: Final = "not_done"
"""Code of a problem with a text of the tool's documentation; all other texts get the prefix "Not done"."""

# -- commands ----------------------------------------------------------------------------------------

_Path = Annotated[str, Field(max_length=MAX_PATH_BYTES)]
_Text = Annotated[str, Field(max_length=MAX_FILE_BYTES)]


class ViewCommand(Frozen):
    """Show a file with its lines numbered, or list a directory."""

    path: _Path
    view_range: Annotated[list[int], Field(max_length=2, min_length=2)] | None = None


class CreateCommand(Frozen):
    """Create a new file."""

    path: _Path
    file_text: _Text


class StrReplaceCommand(Frozen):
    """Replace a text that occurs once."""

    path: _Path
    old_str: Annotated[_Text, Field(min_length=1)]
    new_str: _Text


class InsertCommand(Frozen):
    """Insert a text after a line; 0: at the beginning."""

    path: _Path
    insert_line: int
    insert_text: _Text


class DeleteCommand(Frozen):
    """Delete a file, or a directory with its content."""

    path: _Path


class RenameCommand(Frozen):
    """Rename a file or directory."""

    old_path: _Path
    new_path: _Path


def _not_done(text: str) -> ToolProblem:
    """Return the problem of a rejected command, with a text of the documentation."""
    return ToolProblem(_OF_THE_TOOL, text)


class MemoriesDirectory:
    """The memory as `/memories`; threads may share one object, which executes one command at a time.

    Args:
        memory: owned by the caller, who closes it after this.
        scope: the only scope in `/memories`; None: `/memories` lists the scopes as directories.
        trust: of written text (M4).

    Raises:
        InvalidScope: the scope is not bound.
        ManagedMemoryUnavailable: a root was replaced.
    """

    def __init__(self, memory: Memory, *, scope: str | None = None, trust: Trust | str = Trust.AGENT) -> None:
        place = memory.place
        self._scopes = place.chosen(scope)
        self._is_one, self._policy = scope is not None, place.policy
        self._entries, self._trust = Entries(place), Trust(trust)
        self._reader = self._trust  # Reading does not change what may be listed.
        self._lock = threading.Lock()

    def answer(self, asked: object, cancel: Cancel | None = None) -> str:
        """Execute a command; return its result as text.

        Args:
            asked: `command` and its arguments, as the model wrote them.
            cancel: stops it early: nothing is written, unless the write is already done.

        Raises:
            ToolError: it was not executed (M2).
        """
        try:
            with answering("memory_tool_failed"), self._lock:
                patience = Patience(time.monotonic() + WAIT_SECONDS, cancel)
                patience.check()
                return self._carried_out(asked, patience)
        except ToolProblem as problem:
            told = str(problem)
            if isinstance(waits := problem.__cause__, PendingReview):
                told = f"it is pending until the owner of the memory approves it (review {waits.review_id})"
            elif isinstance(problem.__cause__, StoreConflict):
                told = "another process changed this file. View it again."
            raise ToolError(told if problem.code == _OF_THE_TOOL else f"Not done: {told}") from None

    def _carried_out(self, asked: object, patience: Patience) -> str:
        sent = dict(asked) if isinstance(asked, Mapping) else {}
        name = sent.pop("command", None)
        if not isinstance(name, str) or name not in self._COMMANDS:
            raise ToolProblem("bad_arguments", f"unknown command; use one of {', '.join(self._COMMANDS)}")
        takes, carry_out = self._COMMANDS[name]
        return carry_out(self, arguments_of(name, takes, sent), patience)

    # -- commands

    def _view(self, command: ViewCommand, _: Patience) -> str:
        where = self._at(command.path)
        if where is None or where[1] != "file":
            return self._within_limits(self._listing(command.path, None if where is None else where[0]))
        lines = self._read(where[0]).entry.body.split("\n")
        if len(lines) > MAX_LINES:
            raise _not_done(f"File {command.path} exceeds maximum line limit of {MAX_LINES:,} lines.")
        first, last = command.view_range or (1, -1)
        numbered = _numbered(lines, max(1, first), len(lines) if last == -1 else last)
        return self._within_limits(f"Here's the content of {command.path} with line numbers:\n{numbered}")

    def _create(self, command: CreateCommand, patience: Patience) -> str:
        if self._at(command.path) is not None:
            _require_suffix(command.path)
        where = self._at(command.path, Verb.CREATE, Verb.MODIFY)
        if where is None or where[1] is not None:
            raise _not_done(f"File {command.path} already exists")
        left_out = self._written(where[0], with_front(command.file_text), None, patience)
        return f"File created successfully at: {command.path}{left_out}"

    def _replace(self, command: StrReplaceCommand, patience: Patience) -> str:
        held = self._file(command.path)
        body, old = held.entry.body, command.old_str
        at = body.find(old)
        if at < 0:
            told = f"old_str `{old}` did not appear verbatim in {command.path}."
            raise _not_done(f"No replacement was performed, {told}")
        if body.find(old, at + 1) >= 0:
            lines = ", ".join(map(str, islice(_lines_with(body, old), MAX_LISTED)))
            told = f"Multiple occurrences of old_str `{old}` in lines: {lines}. Please ensure it is unique"
            raise _not_done(f"No replacement was performed. {told}")
        after = body[:at] + command.new_str + body[at + len(old) :]
        left_out = self._written(held.path, held.with_body(after), held, patience)
        if left_out:
            return f"The memory file has been edited.{left_out}"  # The stored text differs from `after`.
        changed = body.count("\n", 0, at) + 1
        shown = _numbered(after.split("\n"), max(1, changed - SNIPPET_LINES), changed + SNIPPET_LINES)
        told = "The memory file has been edited. Here is the snippet showing the change (with line numbers):"
        return f"{told}\n{shown}"

    def _insert(self, command: InsertCommand, patience: Patience) -> str:
        held = self._file(command.path)
        lines = held.entry.body.removesuffix("\n").split("\n") if held.entry.body else []
        if not 0 <= command.insert_line <= len(lines):
            told = f"Invalid `insert_line` parameter: {command.insert_line}."
            raise _not_done(f"{told} It should be within the range [0, {len(lines)}].")
        lines.insert(command.insert_line, command.insert_text.rstrip("\n"))
        after = "\n".join(lines)
        after = after if after.endswith("\n") else f"{after}\n"
        left_out = self._written(held.path, held.with_body(after), held, patience)
        return f"The file {command.path} has been edited.{left_out}"

    def _delete(self, command: DeleteCommand, patience: Patience) -> str:
        shown = command.path
        _, paths = self._meant(shown, "delete", self._policy.changes.max_forget)
        removals = [FileChange(path, self._entries.digest_of(path), None) for path in paths]
        self._entries.change(removals, self._trust, patience)
        return f"Successfully deleted {shown}"

    def _rename(self, command: RenameCommand, patience: Patience) -> str:
        old, new = command.old_path, command.new_path
        if self._at(old) is None:
            raise _not_done(f"Cannot rename the {ROOT} directory itself")
        to = self._at(new)
        if to is None or (to[1] is not None and (to[1] != "directory" or self._below(to[0]))):
            raise _not_done(f"The destination {new} already exists")
        if old != new and fold(old) == fold(new):
            raise _not_done(f"{new} differs from {old} only in case; use another name")
        if old.endswith(FILE_SUFFIX):
            _require_suffix(new)
        top, paths = self._meant(old, "rename", self._policy.limits.files_written)
        if top not in paths and f"{to[0].text}/".startswith(f"{top.text}/"):
            raise _not_done(f"{old} cannot be moved into itself")
        held = [self._entries.read(path) for path in paths]
        moved = {
            CanonicalPath(to[0].scope, RelPath(to[0].rel + each.path.rel[len(top.rel) :])): each
            for each in held
        }
        self._entries.move(moved, self._trust, patience)
        return f"Successfully renamed {old} to {new}"

    _COMMANDS: ClassVar[Mapping[str, tuple[type[Frozen], Callable[[Any, Any, Patience], str]]]] = {
        "view": (ViewCommand, _view),
        "create": (CreateCommand, _create),
        "str_replace": (StrReplaceCommand, _replace),
        "insert": (InsertCommand, _insert),
        "delete": (DeleteCommand, _delete),
        "rename": (RenameCommand, _rename),
    }
    """The arguments and the method of each command."""

    # -- shared by commands

    def _at(self, shown: str, *verbs: Verb) -> tuple[CanonicalPath, Kind | None] | None:
        """Return the path and the kind of the file there; None for `/memories` itself in any spelling."""
        if shown != ROOT and not shown.startswith(f"{ROOT}/"):
            raise _not_done(f"Path must start with {ROOT}, got: {printable(shown)}")
        if posixpath.normpath(shown) == ROOT:
            return None
        inside = shown.removeprefix(f"{ROOT}/")
        outside = _not_done(f"Path {printable(shown)} would escape {ROOT} directory")
        if inside.startswith("/"):
            raise outside
        try:
            return self._entries.at(joined(self._scopes[0], inside) if self._is_one else inside, *verbs)
        except PathEscape:
            raise outside from None
        except Refused as error:
            if error.rule != "scopes":
                raise
            choice = " or ".join(f"{ROOT}/{scope}/" for scope in self._scopes)
            raise ToolProblem("refused", f"the path must begin with {choice}") from None

    def _read(self, path: CanonicalPath) -> HeldEntry:
        """Read an entry whose text is shown to the model (M4)."""
        held = self._entries.read(path)
        self._trust = self._trust.capped(held.trust)
        return held

    def _written(self, path: CanonicalPath, text: str, held: HeldEntry | None, patience: Patience) -> str:
        """Write a file; return a remark if a secret was removed, otherwise an empty text."""
        self._entries.write(path, text, held, self._trust, patience)
        is_whole = self._entries.encoded(text) == encode(text)
        return "" if is_whole else "\nA possible secret was removed."

    def _file(self, shown: str) -> HeldEntry:
        """Read the file to edit."""
        where = self._at(shown)
        if where is None or where[1] == "directory":
            raise _not_done(f"The path {shown} is not a file.")
        if where[1] is None:
            raise _missing(shown)
        self._at(shown, Verb.MODIFY)
        return self._read(where[0])

    def _meant(self, shown: str, verb: str, most: int) -> tuple[CanonicalPath, list[CanonicalPath]]:
        """Return a path, and the file there or all files under it."""
        where = self._at(shown)
        if where is None or not where[0].rel:
            raise _not_done(f"Cannot {verb} the {shown if where else ROOT} directory itself")
        paths = [where[0]] if where[1] == "file" else [path for path, _ in self._below(where[0])]
        if not paths:
            raise _missing(shown)
        if len(paths) > most:
            told = f"{shown} contains {len(paths)} files, and one call may {verb} {most}; use several calls"
            raise _not_done(told)
        return where[0], paths

    def _below(self, directory: CanonicalPath) -> list[tuple[CanonicalPath, int]]:
        """Return the visible files under a directory, with their sizes."""
        inside = joined(directory.rel, "")
        listed = self._entries.listed(directory.scope, self._reader)
        return [(path, row.size) for path, row in listed if path.rel.startswith(inside)]

    def _listing(self, shown: str, directory: CanonicalPath | None) -> str:
        tops = (
            [CanonicalPath(scope, RelPath("")) for scope in self._scopes]
            if directory is None
            else [directory]
        )
        above = "" if directory is None and not self._is_one else joined(tops[0].text, "")
        sizes: dict[tuple[str, ...], int] = {} if above else {(each.text,): 0 for each in tops}
        files = set[tuple[str, ...]]()
        for path, size in (each for top in tops for each in self._below(top)):
            names = tuple(path.text.removeprefix(above).split("/"))
            if any(name.startswith(".") or name == "node_modules" for name in names):
                continue
            files.add(names)
            for depth in range(min(len(names), LEVELS) + 1):
                sizes[names[:depth]] = sizes.get(names[:depth], 0) + size
        if directory is not None and directory.rel and not files:
            raise _missing(shown)
        total, top = sizes.pop((), 0), shown.rstrip("/")
        lines = [f"{_size(total)}\t{top}"]
        for names in sorted(sizes):
            end = "" if names in files else "/"
            lines.append(f"{_size(sizes[names])}\t{top}/{'/'.join(names)}{end}")
        if len(lines) > MAX_LISTED:
            lines[MAX_LISTED:] = [f"[{len(lines) - MAX_LISTED} more; view a subdirectory]"]
        head = f"Here're the files and directories up to {LEVELS} levels deep in {shown}, "
        return "\n".join([f"{head}excluding hidden items and node_modules:", *lines])

    def _within_limits(self, answer: str) -> str:
        if len(answer.encode()) > self._policy.limits.read_bytes:
            raise ToolProblem("refused", "the text is too long for one view; use view_range")
        return answer


def _require_suffix(shown: str) -> None:
    name = shown.rpartition("/")[2]
    if name.strip(".") and not name.endswith(FILE_SUFFIX):
        example = f"{posixpath.splitext(printable(shown))[0]}{FILE_SUFFIX}"
        raise ToolProblem("refused", f"the name of a file must end in {FILE_SUFFIX}, such as {example}")


def _missing(shown: str) -> ToolProblem:
    return _not_done(f"The path {shown} does not exist. Please provide a valid path.")


def _numbered(lines: list[str], first: int, last: int) -> str:
    """Return some lines, each with its number."""
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines[first - 1 : last], first))


def _lines_with(body: str, text: str) -> Iterator[int]:
    """Yield the line number of the start of each occurrence."""
    at, number, counted = body.find(text), 1, 0
    while at >= 0:
        number += body.count("\n", counted, at)
        counted = at
        yield number
        at = body.find(text, at + 1)


def _size(size: int) -> str:
    """Format a size as the SDK does, such as `0B`, `4K`, `1.5K`."""
    power = min(max(size.bit_length() - 1, 0) // 10, 3)
    scaled = size / 1024**power
    return f"{int(scaled) if scaled == int(scaled) else f'{scaled:.1f}'}{'BKMG'[power]}"


# -- tools -------------------------------------------------------------------------------------------


class _OverMemory:
    """The common base of both tools; a subclass adds one of the SDK's classes."""

    def __init__(
        self,
        memory: Memory,
        *,
        scope: str | None = None,
        trust: Trust | str = Trust.AGENT,
        cache_control: BetaCacheControlEphemeralParam | None = None,
    ) -> None:
        super().__init__(cache_control=cache_control)  # type: ignore[call-arg]
        self._directory = MemoriesDirectory(memory, scope=scope, trust=trust)


class MunimentMemoryTool(_OverMemory, BetaAbstractMemoryTool):
    """A tool for `client.beta.messages.tool_runner`; create one for each conversation.

    Args:
        memory: owned by the caller, who closes it after this.
        scope: the only scope in `/memories`; None: `/memories` lists the scopes as directories.
        trust: of text that the model writes. Give a higher trust than `agent` only if a person chose every
            word.
        cache_control: as in the SDK.

    Raises:
        InvalidScope: the scope is not bound.
        ValueError: the trust is unknown.
    """

    def call(self, input: object) -> str:  # noqa: A002  the SDK's name
        """Execute a command; see `MemoriesDirectory.answer`.

        Raises:
            ToolError: it was not executed; the model receives the reason.
        """
        return self._directory.answer(input)

    def _commanded(self, command: Any) -> str:
        """Execute a command object of the SDK, see `call`."""
        return self.call(dict(command))

    view = create = str_replace = insert = delete = rename = _commanded


class AsyncMunimentMemoryTool(_OverMemory, BetaAsyncAbstractMemoryTool):
    """The same as `MunimentMemoryTool` for the asynchronous client; commands run in threads.

    If its task is cancelled, a command stops early, and writes nothing unless the write is already done.
    """

    async def call(self, input: object) -> str:  # noqa: A002  the SDK's name
        """Execute a command; see `MemoriesDirectory.answer`."""
        return await in_thread(partial(self._directory.answer, input))

    async def _commanded(self, command: Any) -> str:
        """Execute a command object of the SDK, see `call`."""
        return await self.call(dict(command))

    view = create = str_replace = insert = delete = rename = _commanded
