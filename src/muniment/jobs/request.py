"""What remember is asked, where jobs work, and what it answers: values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from muniment.agent.model import Turn
from muniment.errors import InvalidContent, MunimentError
from muniment.jobs.ending import ending_json
from muniment.names import MAX_FACT_BYTES, ContextMode, Enforcement, FenceLayer, Scope, Trust
from muniment.policy.grammar import MAX_MARKS, overlong_run
from muniment.store.ledger import Change

MAX_TASK_CHARS: Final = 100
"""Characters of a task's id."""

Status = Literal["completed", "dry_run", "failed", "cancelled"]


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
    """

    content: str
    scope: str | None = None
    context: str = ContextMode.WORKSPACE
    trust: Trust = Trust.OWNER
    dry_run: bool = False
    task_id: str | None = None
    detail: bool = False
    secret: Literal["taken", "left"] | None = None


@dataclass(frozen=True, slots=True)
class RememberResult:
    """What came of a request.

    Attributes:
        status: only `completed` wrote, or found the fact known (`unchanged`).
        files_touched: logical paths of the committed change-set, without indexes.
        touched_scopes: the scopes of these, by the roots that were opened.
        enforcement: what held the run's worker; None: it came to none.
        missing_layers: layers of the kernel fence that did not hold it.
        decided_by: `rules`, or the model's name.
        trust: of what was written, the least of it; below that of the request where a model put it into words
            of its own. None: nothing was.
        timeline: what each turn took of the model.
        repeated: the task had committed before; this is what it did then.
        changes: the change-set; of a dry run, what would have been committed.
        notes: what a person should know, such as where a hand-written index was saved.
        summary: one sentence of ours.
        error: why it failed, with its stable code.
        detail: the model's last words, fenced as data; None: they were not asked for, or there are none.
    """

    task_id: str
    status: Status
    summary: str
    files_touched: tuple[str, ...]
    touched_scopes: tuple[Scope, ...]
    enforcement: Enforcement | None
    decided_by: str
    turns: int
    seconds: float
    policy: str
    missing_layers: tuple[FenceLayer, ...] = ()
    trust: Trust | None = None
    timeline: tuple[Turn, ...] = ()
    unchanged: bool = False
    repeated: bool = False
    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = ()
    error: MunimentError | None = None
    detail: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The document that `remember --json` prints."""
        document: dict[str, Any] = {
            "task_id": self.task_id,
            "status": self.status,
            "summary": self.summary,
            "files_touched": list(self.files_touched),
            "touched_scopes": list(self.touched_scopes),
            "enforcement": self.enforcement,
            "missing_layers": list(self.missing_layers),
            "decided_by": self.decided_by,
            "trust": self.trust,
            "turns": self.turns,
            **ending_json(self.seconds, self.timeline, self.policy, self.error),
        }
        if self.unchanged:
            document["unchanged"] = True
        if self.repeated:
            document["repeated"] = True
        if self.notes:
            document["notes"] = list(self.notes)
        if self.detail is not None:
            document["detail"] = self.detail
        if self.status == "dry_run":
            document["changes"] = [
                {"path": change.path, "kind": change.kind, "sha256_after": change.sha256_after}
                for change in self.changes
            ]
        return document


def check_content(content: str) -> str:
    """`content` trimmed, without a byte order mark, if it can be remembered.

    Raises:
        InvalidContent: it is empty, too long, no Unicode text, or holds NUL or too many combining marks in a
            row.
    """
    fact = content.strip().removeprefix("\ufeff").strip()
    if not fact:
        raise InvalidContent("there is nothing to remember: the text is empty")
    if "\0" in fact:
        raise InvalidContent("the text holds a NUL character")
    try:
        size = len(fact.encode())
    except UnicodeEncodeError:
        raise InvalidContent("the text is not valid Unicode: it holds half of a character pair") from None
    if size > MAX_FACT_BYTES:
        raise InvalidContent(f"the text has {size} bytes; a fact may have {MAX_FACT_BYTES}")
    if overlong_run(fact) is not None:
        raise InvalidContent(f"the text holds more than {MAX_MARKS} combining marks in a row; leave them out")
    return fact
