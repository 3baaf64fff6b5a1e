"""What jobs are asked and what they answer: values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from muniment.agent.model import Turn
from muniment.content.exact_json import whole_text
from muniment.content.gates import drop_invisible
from muniment.errors import InvalidContent, MunimentError, PendingReview
from muniment.kernel.names import Scope, Trust
from muniment.kernel.normal_forms import MAX_MARKS, overlong_run
from muniment.names import MAX_FACT_BYTES, ContextMode, FenceLayer
from muniment.store.ledger import Change
from muniment.types import DreamResult, ForgetResult, KeptEntry, RememberResult, SupersededEntry, members

# -- ending ------------------------------------------------------------------------------------------
#
# How a job ends as part of a JSON document.


def ending_json(
    seconds: float, timeline: Sequence[Turn], policy: str, error: MunimentError | None
) -> dict[str, Any]:
    """The end of a result's document."""
    return {
        "seconds": round(seconds, 3),
        "timeline": [
            {
                "seconds": round(turn.seconds, 3),
                "input_tokens": turn.usage.input_tokens,
                "output_tokens": turn.usage.output_tokens,
            }
            for turn in timeline
        ],
        "policy": policy,
        **error_json(error),
    }


def error_json(error: MunimentError | None) -> dict[str, Any]:
    """How a result's document says why it failed, and which review it waits for."""
    document: dict[str, Any] = {
        "error": None if error is None else {"code": error.code, "message": str(error)}
    }
    if isinstance(error, PendingReview):
        document["review_id"] = error.review_id
    return document


# -- request -----------------------------------------------------------------------------------------

MAX_TASK_CHARS: Final = 100
"""Characters of a task's id."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberReport(RememberResult):
    """What came of a request.

    Attributes:
        status: only `completed` wrote, or found the fact known (`unchanged`).
        files_touched: logical paths of the committed change-set, without indexes.
        touched_scopes: the scopes of these, by the roots that were opened.
        enforcement: what held the run's worker; None: it came to none.
        missing_layers: layers of the kernel fence that did not hold it.
        decided_by: `rules`, or the model's name.
        trust: of what was written, the least of it. None: nothing was.
        superseded: what no longer holds because of the fact, with the path at which that stands now.
        similar: what is about the same and stays; new entries are linked to it.
        timeline: what each turn took of the model.
        repeated: the task had committed before; this is what it did then.
        changes: the change-set; of a dry run, what would have been committed.
        notes: what a person should know, such as where a hand-written index was saved.
        summary: one sentence of ours.
        error: why it failed, with its stable code.
        detail: the model's last words, fenced as data; None: they were not asked for, or there are none.
    """

    task_id: str
    status: Literal["completed", "dry_run", "failed", "cancelled"]
    turns: int
    seconds: float
    policy: str
    missing_layers: tuple[FenceLayer, ...] = ()
    timeline: tuple[Turn, ...] = ()
    unchanged: bool = False
    repeated: bool = False
    changes: tuple[Change, ...] = ()
    superseded: tuple[SupersededEntry, ...] = field(init=False)
    error: MunimentError | None = None
    detail: str | None = None

    def __post_init__(self) -> None:
        """Say of the changes what no longer holds because of them."""
        gone = ((each.path, each.superseded) for each in self.changes)
        told = tuple(SupersededEntry(path, was.id) for path, was in gone if was is not None)
        object.__setattr__(self, "superseded", told)

    def as_json(self) -> dict[str, Any]:
        """The document that `remember --json` prints."""
        names = "task_id status summary files_touched touched_scopes enforcement missing_layers decided_by"
        document = members(self, f"{names} trust turns")
        document |= ending_json(self.seconds, self.timeline, self.policy, self.error)
        for name in ("expires", "ends"):
            if getattr(self, name) is not None:
                document |= members(self, name)
        if self.unchanged:
            document["unchanged"] = True
        if self.repeated:
            document["repeated"] = True
        if self.superseded:
            document |= members(self, "superseded")
        if self.similar:
            document |= members(self, "similar")
        if self.notes:
            document |= members(self, "notes")
        if self.detail is not None:
            document["detail"] = self.detail
        if self.status == "dry_run":
            document["changes"] = [
                {"path": change.path, "kind": change.kind, "sha256_after": change.sha256_after}
                for change in self.changes
            ]
        return document


def check_content(content: str) -> str:
    """Return `content` trimmed, without needless invisible characters, with U+FFFD for lone surrogates.

    Raises:
        InvalidContent: it is empty, too long, or holds NUL or too many combining marks in a row.
    """
    fact = drop_invisible(whole_text(content)).strip()
    if not fact:
        raise InvalidContent("there is nothing to remember: the text is empty")
    if "\0" in fact:
        raise InvalidContent("the text holds a NUL character")
    size = bytes_of(fact)
    if size > MAX_FACT_BYTES:
        raise InvalidContent(f"the text has {size} bytes; a fact may have {MAX_FACT_BYTES}")
    if overlong_run(fact) is not None:
        raise InvalidContent(f"the text holds more than {MAX_MARKS} combining marks in a row; leave them out")
    return fact


def check_query(query: str, purpose: str = "recall") -> str:
    """Return `query` as `check_content` returns a fact.

    Args:
        query: any text.
        purpose: a verb for the message.

    Raises:
        InvalidContent: it is empty, which the message says, or as `check_content`.
    """
    if not query.strip():
        raise InvalidContent(f"the query is empty: say what to {purpose}")
    return check_content(query)


def bytes_of(text: str) -> int:
    """How many bytes of UTF-8 a text has.

    Raises:
        InvalidContent: none, since it holds half a character.
    """
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidContent("the text is not valid Unicode: it holds half of a character pair") from None


# -- forget request ----------------------------------------------------------------------------------
#
# What forget is asked, and what it answers: values.

MAX_QUERY_BYTES: Final = MAX_FACT_BYTES
"""Bytes of a query: whoever wants a fact forgotten may send the fact."""

MAX_QUERY_WORDS: Final = 64
"""Significant words of a query: some sentences. All of them are looked for in every entry."""

SHOWN_PATHS: Final = 10
"""Paths that an error names, or an answer as near; a preview names all that would go."""


@dataclass(frozen=True, slots=True)
class ForgetRequest:
    """What a caller wants forgotten.

    Attributes:
        query: the path of an entry, such as `user/editor.md`; or a description. Without a model an entry
            matches if it has all of its words, or if it alone has all but function words. Trimmed, at most
            `MAX_QUERY_BYTES` bytes of UTF-8, with 1 to `MAX_QUERY_WORDS` different words that say something.
        scope: where alone to look; None: everywhere.
        yes: do it; else only say what would be done.
        trust: of the one who asks.
        task_id: as of a `RememberRequest`.
        digest: that a preview had: where something else would go now, nothing does. None: whatever is meant.
    """

    query: str
    scope: str | None = None
    yes: bool = False
    trust: Trust = Trust.OWNER
    task_id: str | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetReport(ForgetResult):
    """What came of a forget.

    Attributes:
        status: only `completed` removed anything, and maybe nothing, where nothing was meant.
        summary: one line for people.
        removed_entries: what went; of a preview, what would go. What is held back from models is not quoted.
        kept: what was meant and stays.
        near: where nothing was meant, logical paths of entries that share a word with the description, at
            most `SHOWN_PATHS`, the best first.
        touched_scopes: where something went.
        touched_topics: what that was about.
        decided_by: `rules`, or the model's name.
        notes: what a person should know.
        repeated: the task had committed before; this is what the ledger knows of what it did then.
        digest: of a preview: names exactly what would go; nobody can make it who was not shown that. None:
            nothing would, or too much.
        error: why it failed, with its stable code.
    """

    task_id: str
    status: Literal["completed", "preview", "failed", "cancelled"]
    decided_by: str
    policy: str
    turns: int
    seconds: float
    timeline: tuple[Turn, ...]
    touched_topics: tuple[str, ...] = field(init=False)
    repeated: bool = False
    error: MunimentError | None = None

    def __post_init__(self) -> None:
        """Say of what went what it was about."""
        topics = {each.topic for each in self.removed_entries} if self.touched_scopes else ()
        object.__setattr__(self, "touched_topics", tuple(sorted(topics)))

    def as_json(self) -> dict[str, Any]:
        """The document that `forget --json` prints."""
        names = "task_id status summary removed_entries kept near touched_scopes decided_by turns notes"
        return {
            **members(self, names),
            **({"digest": self.digest} if self.digest is not None else {}),
            **({"repeated": True} if self.repeated else {}),
            **ending_json(self.seconds, self.timeline, self.policy, self.error),
        }


# -- dream request -----------------------------------------------------------------------------------
#
# What a dream is asked, and what it answers: values.


@dataclass(frozen=True, slots=True)
class DreamRequest:
    """What a caller wants tidied.

    Attributes:
        scope: where alone; None: everywhere.
        yes: do it; else only say what would be done.
        trust: of the one who asks; nothing above it is changed.
        attended: whether somebody has asked for this dream; if not, its removals wait for the owner.
        task_id: as of a `RememberRequest`.
    """

    scope: str | None = None
    yes: bool = False
    trust: Trust = Trust.OWNER
    attended: bool = True
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """What was found and what became of it, in numbers of entries unless said otherwise.

    Attributes:
        entries: looked at.
        exact_duplicates: that say what another one says.
        near_duplicates: that are alike to another one.
        expired: whose time is over.
        unreadable: that cannot be read.
        broken_links: relative links to nothing, in numbers of links.
        merged: removed because another one says it, or that it is no longer so; of a preview, that would be.
        removed_expired: removed because their time is over; likewise.
        ended: that no longer hold, as their words say; they stay.
        rewritten: that were given a new text, which stands for others as well; likewise.
        left: that one dream may not change any more; the next one may.
        rejected: groups that changed meanwhile, and so were left alone.
    """

    entries: int = 0
    exact_duplicates: int = 0
    near_duplicates: int = 0
    expired: int = 0
    unreadable: int = 0
    broken_links: int = 0
    merged: int = 0
    removed_expired: int = 0
    ended: int = 0
    rewritten: int = 0
    left: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class DreamReport:
    """What came of a dream.

    Attributes:
        status: only `completed` changed anything, and maybe nothing.
        summary: one line for people.
        counts: in numbers.
        deduped_entries: logical paths of the entries that went because another one says what they said; of a
            preview, that would go.
        expired_entries: those whose time was over; likewise.
        ended_entries: those that no longer hold, as their words say. They stay; a person may remove them.
        alike: groups of logical paths whose texts are alike, as they are now.
        kept: what would have gone, but may not.
        touched_topics: the types of the entries that changed; `reference` for one that says none.
        touched_scopes: where something changed.
        decided_by: `rules`, or the model's name.
        notes: what a person should know.
        repeated: the task had committed before; this is what the ledger knows of what it did then.
        error: why it failed, with its stable code.
    """

    task_id: str
    status: Literal["completed", "preview", "failed", "cancelled"]
    summary: str
    decided_by: str
    policy: str
    turns: int
    seconds: float
    timeline: tuple[Turn, ...]
    counts: Counts = Counts()
    deduped_entries: tuple[str, ...] = ()
    expired_entries: tuple[str, ...] = ()
    ended_entries: tuple[str, ...] = ()
    alike: tuple[tuple[str, ...], ...] = ()
    kept: tuple[KeptEntry, ...] = ()
    touched_topics: tuple[str, ...] = ()
    touched_scopes: tuple[Scope, ...] = ()
    notes: tuple[str, ...] = ()
    repeated: bool = False
    error: MunimentError | None = None

    @property
    def told(self) -> DreamResult:
        """What whoever asked over the wire is told: how many entries went, not which."""
        return DreamResult(
            summary=self.summary,
            touched_topics=self.touched_topics,
            touched_scopes=self.touched_scopes,
            deduped_entries=len(self.deduped_entries),
            rejected=self.counts.rejected,
            ended_entries=len(self.ended_entries) or None,
        )

    def as_json(self) -> dict[str, Any]:
        """The document that `dream --json` prints."""
        names = "task_id status summary counts deduped_entries expired_entries ended_entries alike kept"
        return {
            **members(self, f"{names} touched_topics touched_scopes decided_by turns notes"),
            **({"repeated": True} if self.repeated else {}),
            **ending_json(self.seconds, self.timeline, self.policy, self.error),
        }
