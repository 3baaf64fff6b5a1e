"""The requests of operations, for `Memory.try_remember` and the similar methods."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from muniment.kernel.names import Trust
from muniment.names import ContextMode


@dataclass(frozen=True, slots=True)
class RememberRequest:
    """A request to remember a fact.

    Attributes:
        content: the fact; trimmed, then 1 to `MAX_FACT_BYTES` bytes of UTF-8 without NUL.
        scope: the only scope that may be written; None: the agent chooses.
        context: the data that the run may see.
        trust: of the author of the fact.
        dry_run: judge and report; commit nothing.
        task_id: chosen by the caller, 1 to `MAX_TASK_CHARS` of A-Z a-z 0-9 `.` `_` `-`, so that a repeated
            request is carried out once; None: a new one.
        expires: the last day on which it is shown, such as `2026-12-31`, or a number of days, such as `30d`;
            None: it is never hidden. An end in its text is stored separately, see `content/expiry.py`.
    """

    content: str
    scope: str | None = None
    context: str = ContextMode.WORKSPACE
    trust: Trust = Trust.OWNER
    dry_run: bool = False
    task_id: str | None = None
    detail: bool = False
    secret: Literal["taken", "left"] | None = None
    expires: str | None = None


@dataclass(frozen=True, slots=True)
class ForgetRequest:
    """A request to forget entries.

    Attributes:
        query: the path of an entry, such as `user/editor.md`; or a description. Without a model an entry
            matches if it has all of its words, or if it is the only one with all words except function words.
            Trimmed, at most `MAX_QUERY_BYTES` bytes of UTF-8, with 1 to `MAX_QUERY_WORDS` different
            significant words.
        scope: the only scope to search; None: all.
        dry_run: compute and report the changes; change nothing.
        trust: of the caller.
        task_id: as of a `RememberRequest`.
        digest: of a preview: if the removals differ now, nothing is removed. None: no check.
    """

    query: str
    _: KW_ONLY
    scope: str | None = None
    dry_run: bool = False
    trust: Trust = Trust.OWNER
    task_id: str | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class DreamRequest:
    """A request to tidy the memory.

    Attributes:
        scope: the only scope; None: all.
        dry_run: compute and report the changes; change nothing.
        trust: of the caller; entries of a higher trust are not changed.
        attended: whether a user requested this dream; if not, its removals wait for the owner's review.
        task_id: as of a `RememberRequest`.
        digest: as of a `ForgetRequest`.
    """

    scope: str | None = None
    _: KW_ONLY
    dry_run: bool = False
    trust: Trust = Trust.OWNER
    attended: bool = True
    task_id: str | None = None
    digest: str | None = None
