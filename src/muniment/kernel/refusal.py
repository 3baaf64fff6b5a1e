"""The refusals of the kernel: its part of the error tree that `muniment.errors` draws."""

from __future__ import annotations

from typing import Final

from muniment.kernel.names import Via

MAX_REQUESTED_CHARS: Final = 256
"""Characters of a refused path that errors and records keep."""


class MunimentError(Exception):
    """Anything that Muniment raises on purpose.

    Attributes:
        code: stable; see `muniment.errors` for what each means.
    """

    code: str

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        if code is not None:
            self.code = code
        super().__init__(message)


class PlatformUnsupported(MunimentError):
    """This system is not Linux, and nobody has built and tested it elsewhere."""

    code = "platform_unsupported"


class PolicyInvalid(MunimentError):
    """A policy did not load; nothing runs.

    Attributes:
        rule: the check that failed, such as `E101`.
        where: policy name or file, and the key or rule in it.
        line: of the file, from 1; None where it is not known.
    """

    code = "policy_invalid"

    def __init__(self, rule: str, where: str, problem: str, line: int | None = None) -> None:
        self.rule, self.where, self.problem, self.line = rule, where, problem, line
        super().__init__(f"{rule} {where}: {problem}")


class ManagedMemoryUnavailable(MunimentError):
    """A root or the state directory cannot be used.

    Attributes:
        what: the scope or directory in question.
        reason: why, and where possible what to do.
    """

    code = "managed_memory_unavailable"

    def __init__(self, what: str, reason: str) -> None:
        self.what, self.reason = what, reason
        super().__init__(f"{what}: {reason}")


class RollbackFailed(ManagedMemoryUnavailable):
    """A write failed or was interrupted, and cannot be rolled back yet; the message names the files."""


class StoreConflict(MunimentError):
    """What the change-set was based on is no longer so; nothing was written.

    Attributes:
        paths: logical paths whose claims no longer hold.
    """

    code = "store_conflict"

    def __init__(self, paths: tuple[str, ...]) -> None:
        self.paths = paths
        super().__init__(f"changed by someone else meanwhile: {', '.join(paths)}; nothing was written")


class DeadlineExceeded(MunimentError):
    """The run's one monotonic deadline passed."""

    code = "deadline"


class Cancelled(MunimentError):
    """The caller cancelled; nothing was written."""

    code = "cancelled"


class PathEscape(MunimentError):
    """A request whose target lies outside its root. It had no effect.

    Attributes:
        via: how it would have left.
        requested: the path as asked for, printable, at most `MAX_REQUESTED_CHARS` characters.
        tool: the tool that was asked, where known.
    """

    code = "path_escape"

    def __init__(self, via: Via, requested: str, tool: str | None = None) -> None:
        self.via, self.tool = via, tool
        self.requested = printable(requested)
        leads = (
            "leads outside the memory"
            if via in {Via.ABSOLUTE, Via.DOTDOT, Via.NUL}
            else "is no plain file or folder of the memory's own, or lies behind one that is not"
        )
        super().__init__(
            f"{self.requested!r} {leads} ({via}); give a scope, folders and a name that ends in .md"
        )


class Refusal(MunimentError):
    """A request that the name grammar or the policy does not allow."""


class BadName(Refusal):
    """A path outside the name grammar that does not lead outwards either."""

    code = "bad_name"


class Refused(Refusal):
    """The policy does not grant the request.

    Attributes:
        rule: the id of the deny rule, or `default` where nothing grants it.
        layer: the name of the policy layer that refused.
    """

    code = "refused"

    def __init__(self, message: str, *, rule: str, layer: str) -> None:
        self.rule, self.layer = rule, layer
        super().__init__(message)


class ToolError(MunimentError):
    """An ordinary mistake of a tool's caller; the message says what to do next."""


class NotFound(ToolError):
    """No file of that name."""

    code = "not_found"


class NotAFile(ToolError):
    """The name belongs to a directory, or a file stands where a directory is needed."""

    code = "not_a_file"


class TooLarge(ToolError):
    """An argument or file is above its limit."""

    code = "too_large"


class Unreadable(ToolError):
    """The system does not let this process read the file."""

    code = "unreadable"


class QuotaExceeded(ToolError):
    """A quota of the store would be passed."""

    code = "quota"


def printable(text: str) -> str:
    """`text` shortened to `MAX_REQUESTED_CHARS`, with whatever does not print escaped."""
    short = text[:MAX_REQUESTED_CHARS]
    return "".join(char if char.isprintable() else f"\\u{{{ord(char):x}}}" for char in short)
