"""The errors that the kernel raises. `muniment.errors` contains the complete error tree."""

from __future__ import annotations

from typing import Final

from muniment.kernel.names import Via

MAX_REQUESTED_CHARS: Final = 256
"""Maximum number of characters of a rejected path in errors and records."""


class MunimentError(Exception):
    """Base class of the errors that Muniment raises.

    Attributes:
        code: stable error code; `muniment.errors` explains each code.
    """

    code: str

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        if code is not None:
            self.code = code
        super().__init__(message)


class PlatformUnsupported(MunimentError):
    """Muniment does not support this operating system or processor."""

    code = "platform_unsupported"


class PolicyInvalid(MunimentError):
    """A policy could not be loaded, so nothing runs.

    Attributes:
        rule: id of the check that failed, such as `E101`.
        where: name or file of the policy, and the key or rule in it.
        problem: the reason.
        line: line of the policy file, from 1; None if unknown.
    """

    code = "policy_invalid"

    def __init__(self, rule: str, where: str, problem: str, line: int | None = None) -> None:
        self.rule, self.where, self.problem, self.line = rule, where, problem, line
        super().__init__(f"{rule} {where}: {problem}")


class ManagedMemoryUnavailable(MunimentError):
    """A root or the state directory cannot be used now.

    Attributes:
        what: the scope of the root, or the directory.
        reason: why it cannot be used and, if possible, what to do.
    """

    code = "managed_memory_unavailable"

    def __init__(self, what: str, reason: str) -> None:
        self.what, self.reason = what, reason
        super().__init__(f"{what}: {reason}")


class RollbackFailed(ManagedMemoryUnavailable):
    """A write failed or was interrupted, and could not be rolled back yet. The message lists the files."""


class StoreConflict(MunimentError):
    """The memory changed after a change set was prepared. Nothing was written.

    Attributes:
        paths: logical paths of the files that changed meanwhile.
    """

    code = "store_conflict"

    def __init__(self, paths: tuple[str, ...]) -> None:
        self.paths = paths
        super().__init__(f"changed by another process meanwhile: {', '.join(paths)}; nothing was written")


class DeadlineExceeded(MunimentError):
    """The deadline of a run or a wait passed."""

    code = "deadline"


class Cancelled(MunimentError):
    """The caller cancelled the operation. Nothing was written."""

    code = "cancelled"


class PathEscape(MunimentError):
    """A request for a path that leaves its root. It had no effect.

    Attributes:
        via: the way in which the path would have left its root.
        requested: the requested path, with non-printable characters escaped, at most `MAX_REQUESTED_CHARS`
            characters.
        tool: the tool that was called, if known.
    """

    code = "path_escape"

    def __init__(self, via: Via, requested: str, tool: str | None = None) -> None:
        self.via, self.tool = via, tool
        self.requested = printable(requested)
        problem = "is not a regular file or folder of the memory, or is not inside one"
        if via in {Via.ABSOLUTE, Via.DOTDOT, Via.NUL}:
            problem = "is outside the memory"
        super().__init__(
            f"{self.requested!r} {problem} ({via}); give a scope, folders and a name that ends in .md"
        )


class Refusal(MunimentError):
    """A request that the name grammar or the policy does not allow."""


class BadName(Refusal):
    """A path that the name grammar does not allow, and that is not a path escape."""

    code = "bad_name"


class Refused(Refusal):
    """The policy does not grant the request.

    Attributes:
        rule: the id of the deny rule, or `default` if no rule grants the request.
        layer: the name of the policy layer that denied the request.
    """

    code = "refused"

    def __init__(self, message: str, *, rule: str, layer: str) -> None:
        self.rule, self.layer = rule, layer
        super().__init__(message)


class ToolError(MunimentError):
    """An ordinary error of a tool call. The message states what to do next."""


class NotFound(ToolError):
    """The file does not exist."""

    code = "not_found"


class NotAFile(ToolError):
    """The path is a directory, or one of its parents is a file."""

    code = "not_a_file"


class TooLarge(ToolError):
    """An argument or a file is larger than its limit."""

    code = "too_large"


class Unreadable(ToolError):
    """The system does not let this process read the file."""

    code = "unreadable"


class QuotaExceeded(ToolError):
    """The request would exceed a quota of the memory."""

    code = "quota"


def printable(text: str) -> str:
    """Return `text` shortened to `MAX_REQUESTED_CHARS`, with non-printable characters escaped."""
    short = text[:MAX_REQUESTED_CHARS]
    return "".join(char if char.isprintable() else f"\\u{{{ord(char):x}}}" for char in short)
