"""The errors of the kernel: its part of the error tree in `muniment.errors`."""

from __future__ import annotations

from typing import Final

from muniment.kernel.names import Via

MAX_REQUESTED_CHARS: Final = 256
"""Characters of a rejected path that errors and records contain."""


class MunimentError(Exception):
    """Base class of the errors that Muniment raises.

    Attributes:
        code: stable error code; `muniment.errors` explains each.
    """

    code: str

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        if code is not None:
            self.code = code
        super().__init__(message)


class PlatformUnsupported(MunimentError):
    """The system is not Linux, and Muniment was not built and tested for it."""

    code = "platform_unsupported"


class PolicyInvalid(MunimentError):
    """A policy did not load; nothing runs.

    Attributes:
        rule: the check that failed, such as `E101`.
        where: policy name or file, and the key or rule in it.
        line: line of the file, from 1; None if unknown.
    """

    code = "policy_invalid"

    def __init__(self, rule: str, where: str, problem: str, line: int | None = None) -> None:
        self.rule, self.where, self.problem, self.line = rule, where, problem, line
        super().__init__(f"{rule} {where}: {problem}")


class ManagedMemoryUnavailable(MunimentError):
    """A root or the state directory cannot be used.

    Attributes:
        what: the scope or directory.
        reason: why, and if possible what to do.
    """

    code = "managed_memory_unavailable"

    def __init__(self, what: str, reason: str) -> None:
        self.what, self.reason = what, reason
        super().__init__(f"{what}: {reason}")


class RollbackFailed(ManagedMemoryUnavailable):
    """A write failed or was interrupted, and cannot be rolled back yet; the message lists the files."""


class StoreConflict(MunimentError):
    """The memory changed after the change set was based on it; nothing was written.

    Attributes:
        paths: logical paths whose claims are no longer true.
    """

    code = "store_conflict"

    def __init__(self, paths: tuple[str, ...]) -> None:
        self.paths = paths
        super().__init__(f"changed by another process meanwhile: {', '.join(paths)}; nothing was written")


class DeadlineExceeded(MunimentError):
    """The run's one monotonic deadline passed."""

    code = "deadline"


class Cancelled(MunimentError):
    """The caller cancelled; nothing was written."""

    code = "cancelled"


class PathEscape(MunimentError):
    """A request whose target is outside its root. It had no effect.

    Attributes:
        via: the way in which it would have left.
        requested: the requested path, printable, at most `MAX_REQUESTED_CHARS` characters.
        tool: the requested tool, if known.
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
    """A path that is outside the name grammar but is not an escape."""

    code = "bad_name"


class Refused(Refusal):
    """The policy does not grant the request.

    Attributes:
        rule: the id of the deny rule, or `default` if no rule grants it.
        layer: the name of the policy layer that denied it.
    """

    code = "refused"

    def __init__(self, message: str, *, rule: str, layer: str) -> None:
        self.rule, self.layer = rule, layer
        super().__init__(message)


class ToolError(MunimentError):
    """An ordinary error of a tool's caller; the message states what to do next."""


class NotFound(ToolError):
    """The file does not exist."""

    code = "not_found"


class NotAFile(ToolError):
    """The name is a directory, or a file is at the path of a directory."""

    code = "not_a_file"


class TooLarge(ToolError):
    """An argument or file is above its limit."""

    code = "too_large"


class Unreadable(ToolError):
    """The system does not let this process read the file."""

    code = "unreadable"


class QuotaExceeded(ToolError):
    """The request would exceed a quota of the store."""

    code = "quota"


def printable(text: str) -> str:
    """Return `text` shortened to `MAX_REQUESTED_CHARS`, with non-printable characters escaped."""
    short = text[:MAX_REQUESTED_CHARS]
    return "".join(char if char.isprintable() else f"\\u{{{ord(char):x}}}" for char in short)
