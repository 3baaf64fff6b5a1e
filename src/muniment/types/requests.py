"""The requests of operations, as `Memory.try_remember` and its siblings take them."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from muniment.kernel.names import Trust
from muniment.names import ContextMode


@dataclass(frozen=True, slots=True)
class RememberRequest:
    """What a caller wants remembered.

    Attributes:
        content: the fact; trimmed, then 1 to `MAX_FACT_BYTES` bytes of UTF-8 without NUL.
        scope: the one scope that may be written; None: the agent chooses.
        context: what the run may see.
        trust: who the fact comes from.
        dry_run: judge and report, commit nothing.
        task_id: chosen by the caller, 1 to `MAX_TASK_CHARS` of A-Z a-z 0-9 `.` `_` `-`, so that the same
            request made twice is carried out once; None: a new one.
        expires: the last day on which it is shown, such as `2026-12-31`, or in how many days, such as `30d`;
            None: it is not hidden. What its words say of an end is kept beside it, see `content/expiry.py`.
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
    """What a caller wants forgotten.

    Attributes:
        query: the path of an entry, such as `user/editor.md`; or a description. Without a model an entry
            matches if it has all of its words, or if it alone has all but function words. Trimmed, at most
            `MAX_QUERY_BYTES` bytes of UTF-8, with 1 to `MAX_QUERY_WORDS` different words that say something.
        scope: where alone to look; None: everywhere.
        dry_run: compute and show what would be done, change nothing.
        trust: of the one who asks.
        task_id: as of a `RememberRequest`.
        digest: that a preview had: where something else would go now, nothing does. None: whatever is meant.
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
    """What a caller wants tidied.

    Attributes:
        scope: where alone; None: everywhere.
        dry_run: compute and show what would be done, change nothing.
        trust: of the one who asks; nothing above it is changed.
        attended: whether somebody has asked for this dream; if not, its removals wait for the owner.
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
