"""The requests of operations, for `Memory.try_remember` and the similar methods."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from muniment.kernel.names import Digest, Trust
from muniment.names import ContextMode


@dataclass(frozen=True, slots=True)
class RememberRequest:
    """A request to remember a fact.

    Attributes:
        content: the fact; trimmed, then 1 to `MAX_FACT_BYTES` bytes of UTF-8 without NUL.
        scope: the only scope that may be written; None: the agent chooses.
        context: the part of the memory that the run may see: `workspace` or `clean`, see `names.ContextMode`.
        trust: the trust of the author of the fact.
        dry_run: check and return the change, but write nothing.
        task_id: an id chosen by the caller, 1 to `MAX_TASK_CHARS` of A-Z a-z 0-9 `.` `_` `-`. If the request
            is repeated with this id, it is carried out only once. None: a new id.
        detail: include the last text of the model in the result.
        secret: whether a secret was removed from the fact when it was queued: `taken`: yes, and `content` is
            the rest; `left`: the whole fact was a secret, so `content` is empty; None: it had no secret.
        expires: the last day on which the fact is shown, such as `2026-12-31`, or a number of days, such as
            `30d`; None: the fact is never hidden. An end date in the text of the fact is stored separately,
            see `content/expiry.py`.
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
class EntryPart:
    """An entry, or a part of one, as a preview shows it to a person; a `ForgetRequest` can choose it.

    Attributes:
        path: the path of the entry.
        text: the text on one line; a long text is shortened.
        at: the time of the last change of the entry; empty if it is unknown.
        trust: the trust of the entry.
        handle: the handle of the entry; empty if its text is withheld.
        remark: what `text` does not show, such as `entry with 12 lines`; empty if it is complete.
        digest: the digest of the file when it was read.
        span: the offsets of the part in the body of the entry; None: the whole entry.
    """

    path: str
    text: str
    at: str
    trust: Trust
    handle: str
    remark: str
    digest: Digest
    span: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ForgetRequest:
    """A request to forget entries.

    Attributes:
        query: the path of an entry, such as `user/editor.md`, or a description. Without a language model, an
            entry matches if it contains all words of the description. Function words such as `the` are
            ignored if only one entry contains all other words. The query is trimmed; then at most
            `MAX_QUERY_BYTES` bytes of UTF-8 with 1 to `MAX_QUERY_WORDS` different significant words.
        scope: the only scope to search; None: all.
        dry_run: compute and report the changes; change nothing.
        trust: the trust of the caller.
        task_id: as in `RememberRequest`.
        digest: the `digest` of an earlier dry run. If other text would be removed now, nothing is removed.
            None: no check.
        chosen: members of `ForgetResult.entries` of an earlier dry run with this query. Exactly these are
            removed, without a search; if a file has changed since, nothing is removed. Empty: search.
    """

    query: str
    _: KW_ONLY
    scope: str | None = None
    dry_run: bool = False
    trust: Trust = Trust.OWNER
    task_id: str | None = None
    digest: str | None = None
    chosen: tuple[EntryPart, ...] = ()


@dataclass(frozen=True, slots=True)
class DreamRequest:
    """A request to tidy the memory.

    Attributes:
        scope: the only scope to tidy; None: all.
        dry_run: compute and report the changes; change nothing.
        trust: the trust of the caller; entries with a higher trust are not changed.
        attended: whether a user made this request; if not, each removal waits for the owner's review.
        task_id: as in `RememberRequest`.
        digest: as in `ForgetRequest`.
    """

    scope: str | None = None
    _: KW_ONLY
    dry_run: bool = False
    trust: Trust = Trust.OWNER
    attended: bool = True
    task_id: str | None = None
    digest: str | None = None
