"""Provide the memory as the memory tool of the `anthropic` SDK (`memory_20250818`): `muniment[anthropic]`.

    import muniment
    from anthropic import Anthropic
    from muniment.integrations.anthropic import MunimentMemoryTool

    with muniment.open(".") as memory:
        tool = MunimentMemoryTool(memory)
        Anthropic().beta.messages.tool_runner(..., tools=[tool]).until_done()

M1 The policy judges each command. A command that changes files is one commit: it is applied completely or not
   at all, and can be undone.
M2 Every call returns a text or raises the SDK's `ToolError`, because the SDK shows the model the `repr` of
   any other exception. Neither contains a host path, or text of a file that the model may not read.
M3 `view` returns a text byte for byte as it was created. A model sees only the bodies of entries; only code
   writes the front matter (`threat-model/decisions/0040-expose-entry-bodies-to-memory-tools.md`).
M4 A written text has at most the trust that the caller gives, and at most the lowest trust of the files that
   the same tool object has shown before. Therefore create one object for each conversation.
M5 A rejected command, for example one with a path escape, has no effect on the next command.

The texts for the model are those of the tool's documentation. If the SDK's own
`BetaLocalFilesystemMemoryTool` has another text, its text is used. Every displayed line of a file starts with
its number, so that text of a file cannot look like text of the tool. Attacked in
tests/attacks/test_memory_tool.py.
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
from muniment.cancelling import Cancel, run_in_thread
from muniment.content.gates import encode
from muniment.errors import (
    PathEscape,
    PendingReview,
    Refused,
    StoreConflict,
    printable,
)
from muniment.integrations.results import ToolProblem, convert_errors, validate_arguments
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import FileChange
from muniment.kernel.names import MAX_FILE_BYTES, MAX_PATH_BYTES, RelPath, Trust, Verb, join_path
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, fold
from muniment.kernel.root import Kind
from muniment.operations.entries import Entries, StoredEntry, build_file_text
from muniment.policy.frozen import Frozen
from muniment.sandbox.sandbox import WAIT_SECONDS

try:
    from anthropic.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool, ToolError
    from anthropic.types.beta import BetaCacheControlEphemeralParam
except ImportError:
    raise ImportError(
        "this module needs anthropic 2, from 2.14 on; run: pip install 'muniment[anthropic]'"
    ) from None

ROOT: Final = "/memories"

MAX_LINES: Final = 999_999
"""Maximum number of lines of a file that can be displayed; source: the documentation of the tool."""

MAX_LISTED: Final = 500
"""Maximum number of lines of a listing, as for `ls`."""

LEVELS: Final = 2
"""Number of directory levels that a listing shows; source: the documentation of the tool."""

SNIPPET_LINES: Final = 2
"""Number of lines that are displayed before and after a changed line."""

_DOCUMENTED: Final = "not_done"
"""Code of a problem whose text is from the tool's documentation; any other text gets the prefix "Not done".
"""

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


def _create_problem(text: str) -> ToolProblem:
    """Return the problem of a rejected command, with a text from the tool's documentation."""
    return ToolProblem(_DOCUMENTED, text)


class MemoriesDirectory:
    """The memory as the directory `/memories`. Threads may share it; it runs one command at a time.

    Args:
        memory: an open memory; the caller closes it after the last command.
        scope: the only scope in `/memories`; None: `/memories` contains a directory for each scope.
        trust: the trust of text that the model writes.

    Raises:
        InvalidScope: the scope is unknown, or has no directory.
        ManagedMemoryUnavailable: a directory of the memory was replaced.
    """

    def __init__(self, memory: Memory, *, scope: str | None = None, trust: Trust | str = Trust.AGENT) -> None:
        context = memory.context
        self._scopes = context.select_scopes(scope)
        self._is_single_scope, self._policy = scope is not None, context.policy
        self._entries, self._trust = Entries(context), Trust(trust)
        self._reader = self._trust  # Reading does not change what may be listed.
        self._lock = threading.Lock()

    def execute(self, command: object, cancel: Cancel | None = None) -> str:
        """Execute a command of the model, and return the text of the result.

        Args:
            command: a mapping with the name (`command`) and the arguments, as the model wrote them.
            cancel: a token; setting it stops the command, unless the command has already written.

        Raises:
            ToolError: the command was not executed; the message is for the model.
        """
        try:
            with convert_errors("memory_tool_failed"), self._lock:
                deadline = Deadline(time.monotonic() + WAIT_SECONDS, cancel)
                deadline.check()
                return self._dispatch(command, deadline)
        except ToolProblem as problem:
            message = str(problem)
            if isinstance(pending := problem.__cause__, PendingReview):
                message = (
                    f"it is pending until the owner of the memory approves it (review {pending.review_id})"
                )
            elif isinstance(problem.__cause__, StoreConflict):
                message = "another process changed this file. View it again."
            raise ToolError(message if problem.code == _DOCUMENTED else f"Not done: {message}") from None

    def _dispatch(self, command: object, deadline: Deadline) -> str:
        arguments = dict(command) if isinstance(command, Mapping) else {}
        name = arguments.pop("command", None)
        if not isinstance(name, str) or name not in self._COMMANDS:
            raise ToolProblem("bad_arguments", f"unknown command; use one of {', '.join(self._COMMANDS)}")
        arguments_type, method = self._COMMANDS[name]
        return method(self, validate_arguments(name, arguments_type, arguments), deadline)

    # -- commands

    def _view(self, command: ViewCommand, _: Deadline) -> str:
        found = self._resolve_path(command.path)
        if found is None or found[1] != "file":
            return self._check_size(self._format_listing(command.path, None if found is None else found[0]))
        lines = self._read(found[0]).entry.body.split("\n")
        if len(lines) > MAX_LINES:
            raise _create_problem(f"File {command.path} exceeds maximum line limit of {MAX_LINES:,} lines.")
        first, last = command.view_range or (1, -1)
        numbered = _number_lines(lines, max(1, first), len(lines) if last == -1 else last)
        return self._check_size(f"Here's the content of {command.path} with line numbers:\n{numbered}")

    def _create(self, command: CreateCommand, deadline: Deadline) -> str:
        if self._resolve_path(command.path) is not None:
            _check_suffix(command.path)
        found = self._resolve_path(command.path, Verb.CREATE, Verb.MODIFY)
        if found is None or found[1] is not None:
            raise _create_problem(f"File {command.path} already exists")
        remark = self._write(found[0], build_file_text(command.file_text), None, deadline)
        return f"File created successfully at: {command.path}{remark}"

    def _replace(self, command: StrReplaceCommand, deadline: Deadline) -> str:
        stored = self._read_editable_file(command.path)
        body, old = stored.entry.body, command.old_str
        start = body.find(old)
        if start < 0:
            message = f"old_str `{old}` did not appear verbatim in {command.path}."
            raise _create_problem(f"No replacement was performed, {message}")
        if body.find(old, start + 1) >= 0:
            lines = ", ".join(map(str, islice(_find_lines(body, old), MAX_LISTED)))
            message = f"Multiple occurrences of old_str `{old}` in lines: {lines}. Please ensure it is unique"
            raise _create_problem(f"No replacement was performed. {message}")
        after = body[:start] + command.new_str + body[start + len(old) :]
        remark = self._write(stored.path, stored.with_body(after), stored, deadline)
        if remark:
            return f"The memory file has been edited.{remark}"  # The stored text differs from `after`.
        changed = body.count("\n", 0, start) + 1
        snippet = _number_lines(after.split("\n"), max(1, changed - SNIPPET_LINES), changed + SNIPPET_LINES)
        message = (
            "The memory file has been edited. Here is the snippet showing the change (with line numbers):"
        )
        return f"{message}\n{snippet}"

    def _insert(self, command: InsertCommand, deadline: Deadline) -> str:
        stored = self._read_editable_file(command.path)
        lines = stored.entry.body.removesuffix("\n").split("\n") if stored.entry.body else []
        if not 0 <= command.insert_line <= len(lines):
            message = f"Invalid `insert_line` parameter: {command.insert_line}."
            raise _create_problem(f"{message} It should be within the range [0, {len(lines)}].")
        lines.insert(command.insert_line, command.insert_text.rstrip("\n"))
        after = "\n".join(lines)
        after = after if after.endswith("\n") else f"{after}\n"
        remark = self._write(stored.path, stored.with_body(after), stored, deadline)
        return f"The file {command.path} has been edited.{remark}"

    def _delete(self, command: DeleteCommand, deadline: Deadline) -> str:
        displayed_path = command.path
        _, paths = self._find_files(displayed_path, "delete", self._policy.changes.max_forget)
        removals = [FileChange(path, self._entries.read_digest(path), None) for path in paths]
        self._entries.commit_changes(removals, self._trust, deadline)
        return f"Successfully deleted {displayed_path}"

    def _rename(self, command: RenameCommand, deadline: Deadline) -> str:
        old, new = command.old_path, command.new_path
        if self._resolve_path(old) is None:
            raise _create_problem(f"Cannot rename the {ROOT} directory itself")
        destination = self._resolve_path(new)
        if destination is None or (
            destination[1] is not None and (destination[1] != "directory" or self._list_files(destination[0]))
        ):
            raise _create_problem(f"The destination {new} already exists")
        if old != new and fold(old) == fold(new):
            raise _create_problem(f"{new} differs from {old} only in case; use another name")
        if old.endswith(FILE_SUFFIX):
            _check_suffix(new)
        source, paths = self._find_files(old, "rename", self._policy.limits.files_written)
        if source not in paths and f"{destination[0].text}/".startswith(f"{source.text}/"):
            raise _create_problem(f"{old} cannot be moved into itself")
        stored = [self._entries.read(path) for path in paths]
        moved = {
            CanonicalPath(
                destination[0].scope, RelPath(destination[0].rel + each.path.rel[len(source.rel) :])
            ): each
            for each in stored
        }
        self._entries.move(moved, self._trust, deadline)
        return f"Successfully renamed {old} to {new}"

    _COMMANDS: ClassVar[Mapping[str, tuple[type[Frozen], Callable[[Any, Any, Deadline], str]]]] = {
        "view": (ViewCommand, _view),
        "create": (CreateCommand, _create),
        "str_replace": (StrReplaceCommand, _replace),
        "insert": (InsertCommand, _insert),
        "delete": (DeleteCommand, _delete),
        "rename": (RenameCommand, _rename),
    }
    """The class of the arguments and the method of each command."""

    # -- shared by commands

    def _resolve_path(self, displayed_path: str, *verbs: Verb) -> tuple[CanonicalPath, Kind | None] | None:
        """Return the path in the memory, and the kind of the file there; None for `/memories` itself.

        Args:
            displayed_path: a path in `/memories`, as the model wrote it.
            verbs: the policy must grant one of them; empty: the path must be visible.
        """
        if displayed_path != ROOT and not displayed_path.startswith(f"{ROOT}/"):
            raise _create_problem(f"Path must start with {ROOT}, got: {printable(displayed_path)}")
        if posixpath.normpath(displayed_path) == ROOT:
            return None
        inside = displayed_path.removeprefix(f"{ROOT}/")
        outside = _create_problem(f"Path {printable(displayed_path)} would escape {ROOT} directory")
        if inside.startswith("/"):
            raise outside
        try:
            return self._entries.resolve(
                join_path(self._scopes[0], inside) if self._is_single_scope else inside, *verbs
            )
        except PathEscape:
            raise outside from None
        except Refused as error:
            if error.rule != "scopes":
                raise
            choice = " or ".join(f"{ROOT}/{scope}/" for scope in self._scopes)
            raise ToolProblem("refused", f"the path must begin with {choice}") from None

    def _read(self, path: CanonicalPath) -> StoredEntry:
        """Read an entry to show it to the model.

        Texts that are written later have at most the trust of this entry.
        """
        stored = self._entries.read(path)
        self._trust = self._trust.cap(stored.trust)
        return stored

    def _write(self, path: CanonicalPath, text: str, stored: StoredEntry | None, deadline: Deadline) -> str:
        """Write a file; return a remark for the model if a secret was removed, otherwise an empty text."""
        self._entries.write(path, text, stored, self._trust, deadline)
        is_complete = self._entries.encode_text(text) == encode(text)
        return "" if is_complete else "\nA possible secret was removed."

    def _read_editable_file(self, displayed_path: str) -> StoredEntry:
        """Read the file that a command edits, and check that the policy allows the change."""
        found = self._resolve_path(displayed_path)
        if found is None or found[1] == "directory":
            raise _create_problem(f"The path {displayed_path} is not a file.")
        if found[1] is None:
            raise _create_missing_problem(displayed_path)
        self._resolve_path(displayed_path, Verb.MODIFY)
        return self._read(found[0])

    def _find_files(
        self, displayed_path: str, verb: str, maximum: int
    ) -> tuple[CanonicalPath, list[CanonicalPath]]:
        """Return a path in the memory, and the files that a command on this path affects.

        Args:
            displayed_path: the path of a file or directory, as the model wrote it.
            verb: the verb for the message: `delete` or `rename`.
            maximum: the maximum number of files.
        """
        found = self._resolve_path(displayed_path)
        if found is None or not found[0].rel:
            raise _create_problem(f"Cannot {verb} the {displayed_path if found else ROOT} directory itself")
        paths = [found[0]] if found[1] == "file" else [path for path, _ in self._list_files(found[0])]
        if not paths:
            raise _create_missing_problem(displayed_path)
        if len(paths) > maximum:
            count = len(paths)
            message = (
                f"{displayed_path} contains {count} files, and one call may {verb} {maximum}; "
                "use several calls"
            )
            raise _create_problem(message)
        return found[0], paths

    def _list_files(self, directory: CanonicalPath) -> list[tuple[CanonicalPath, int]]:
        """Return the visible files under a directory, each with its size."""
        prefix = join_path(directory.rel, "")
        listed = self._entries.list_visible(directory.scope, self._reader)
        return [(path, row.size) for path, row in listed if path.rel.startswith(prefix)]

    def _format_listing(self, displayed_path: str, directory: CanonicalPath | None) -> str:
        tops = (
            [CanonicalPath(scope, RelPath("")) for scope in self._scopes]
            if directory is None
            else [directory]
        )
        prefix = "" if directory is None and not self._is_single_scope else join_path(tops[0].text, "")
        sizes: dict[tuple[str, ...], int] = {} if prefix else {(each.text,): 0 for each in tops}
        files = set[tuple[str, ...]]()
        for path, size in (each for top in tops for each in self._list_files(top)):
            names = tuple(path.text.removeprefix(prefix).split("/"))
            if any(name.startswith(".") or name == "node_modules" for name in names):
                continue
            files.add(names)
            for depth in range(min(len(names), LEVELS) + 1):
                sizes[names[:depth]] = sizes.get(names[:depth], 0) + size
        if directory is not None and directory.rel and not files:
            raise _create_missing_problem(displayed_path)
        total, top = sizes.pop((), 0), displayed_path.rstrip("/")
        lines = [f"{_format_size(total)}\t{top}"]
        for names in sorted(sizes):
            end = "" if names in files else "/"
            lines.append(f"{_format_size(sizes[names])}\t{top}/{'/'.join(names)}{end}")
        if len(lines) > MAX_LISTED:
            lines[MAX_LISTED:] = [f"[{len(lines) - MAX_LISTED} more; view a subdirectory]"]
        head = f"Here're the files and directories up to {LEVELS} levels deep in {displayed_path}, "
        return "\n".join([f"{head}excluding hidden items and node_modules:", *lines])

    def _check_size(self, text: str) -> str:
        if len(text.encode()) > self._policy.limits.read_bytes:
            raise ToolProblem("refused", "the text is too long for one view; use view_range")
        return text


def _check_suffix(displayed_path: str) -> None:
    name = displayed_path.rpartition("/")[2]
    if name.strip(".") and not name.endswith(FILE_SUFFIX):
        example = f"{posixpath.splitext(printable(displayed_path))[0]}{FILE_SUFFIX}"
        raise ToolProblem("refused", f"the name of a file must end in {FILE_SUFFIX}, such as {example}")


def _create_missing_problem(displayed_path: str) -> ToolProblem:
    return _create_problem(f"The path {displayed_path} does not exist. Please provide a valid path.")


def _number_lines(lines: list[str], first: int, last: int) -> str:
    """Return the lines from `first` to `last`, each with its number."""
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines[first - 1 : last], first))


def _find_lines(body: str, text: str) -> Iterator[int]:
    """Yield the number of the line in which each occurrence of `text` starts."""
    position, number, counted_to = body.find(text), 1, 0
    while position >= 0:
        number += body.count("\n", counted_to, position)
        counted_to = position
        yield number
        position = body.find(text, position + 1)


def _format_size(size: int) -> str:
    """Return a size as the SDK formats it, such as `0B`, `4K`, `1.5K`."""
    power = min(max(size.bit_length() - 1, 0) // 10, 3)
    scaled = size / 1024**power
    return f"{int(scaled) if scaled == int(scaled) else f'{scaled:.1f}'}{'BKMG'[power]}"


# -- tools -------------------------------------------------------------------------------------------


class _MemoryToolBase:
    """The base of the synchronous and the asynchronous tool; a subclass adds one of the SDK's classes."""

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


class MunimentMemoryTool(_MemoryToolBase, BetaAbstractMemoryTool):
    """The memory tool for `client.beta.messages.tool_runner`; create one for each conversation.

    Args:
        memory: an open memory; the caller closes it after the last call.
        scope: the only scope in `/memories`; None: `/memories` contains a directory for each scope.
        trust: the trust of text that the model writes. Give a higher trust than `agent` only if a person
            chose every word.
        cache_control: as in the SDK.

    Raises:
        InvalidScope: the scope is unknown, or has no directory.
        ValueError: the trust is unknown.
    """

    def call(self, input: object) -> str:  # noqa: A002  the SDK's name
        """Execute a command of the model, and return the text of the result; see `MemoriesDirectory.execute`.

        Raises:
            ToolError: the command was not executed; the model receives the reason.
        """
        return self._directory.execute(input)

    def _execute_command(self, command: Any) -> str:
        """Execute a command that the SDK has parsed to an object, see `call`."""
        return self.call(dict(command))

    view = create = str_replace = insert = delete = rename = _execute_command


class AsyncMunimentMemoryTool(_MemoryToolBase, BetaAsyncAbstractMemoryTool):
    """The memory tool for the asynchronous client; like `MunimentMemoryTool`, but commands run in threads.

    If the task that awaits a command is cancelled, the command stops, unless it has already written.
    """

    async def call(self, input: object) -> str:  # noqa: A002  the SDK's name
        """Execute a command of the model, and return the text of the result.

        See `MemoriesDirectory.execute`.
        """
        return await run_in_thread(partial(self._directory.execute, input))

    async def _execute_command(self, command: Any) -> str:
        """Execute a command that the SDK has parsed to an object, see `call`."""
        return await self.call(dict(command))

    view = create = str_replace = insert = delete = rename = _execute_command
