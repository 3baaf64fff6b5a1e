"""The state of a remember over its attempts, and the failures that fall back to the rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from muniment.agent.model import Model
from muniment.agent.runner import Observer, Witness
from muniment.cancelling import Cancel
from muniment.content.entry import parse, shortened
from muniment.content.expiry import End, find_end, local_day, read_expiry
from muniment.content.gates import decode, on_one_line
from muniment.content.provenance import holds, separate_items
from muniment.content.secrets import redacted
from muniment.content.words import comparable, sayings
from muniment.errors import InvalidContent, JobFailed, MunimentError, RememberRefused, ToolError
from muniment.names import Held
from muniment.operations.job import MODEL_ADVICE, Job, model_failure
from muniment.operations.place import Place
from muniment.types import RememberRequest, RememberResult, SimilarEntry

KIND: Final = "remember"

EXPIRY_CHARS: Final = 32
"""Characters of an invalid expiry that an error quotes."""


class FallBackToRules(Exception):
    """The model failed to store the fact, and the rules do it. The message contains the reason."""


class RememberJob(Job):
    """The state of one request that stays the same over its attempts.

    Attributes:
        ends: when the fact ends; None: never.
        held: the confinement of the last run's worker; None: the run did not start a worker.
        similar: entries that the new ones of the last run are linked to, by path.
    """

    kind = KIND

    def __init__(
        self,
        request: RememberRequest,
        place: Place,
        model: Model,
        cancel: Cancel,
        observe: Observer,
        witness: Witness,
    ) -> None:
        super().__init__(place, model, cancel, request.trust, request.task_id, is_dry=request.dry_run)
        self.request, self.observe, self.witness = request, observe, witness
        self.content = ""
        self.ends: End | None = None
        self.held: Held | None = None
        self.similar: Mapping[str, SimilarEntry] = {}

    def result(self) -> RememberResult:
        """Return the result of a task that has not written anything."""
        members = self.members() | {"notes": (*self.place.advice, *self.notes)}
        return RememberResult(
            **members,
            status="dry_run" if self.is_dry else "completed",
            files_touched=(),
            enforcement=self.held.enforcement if self.held else None,
            missing_layers=self.held.missing if self.held else (),
        )

    def require_fact(self, fact: str, texts: Collection[str]) -> None:
        """Check that the written or cited texts contain `fact` (step 6).

        If the rules stored a list of facts, the texts must contain all its items.
        """
        if not self.is_by_rules:
            if not holds(tuple(texts), fact):
                raise FallBackToRules("the text that it wrote or cited does not contain the fact")
            return
        items = set(map(comparable, separate_items(fact)))
        is_whole = any(text.strip() == fact.strip() for text in texts)
        if not is_whole and not items <= set().union(*map(sayings, texts)):
            raise failed("a part of the list could not be stored; nothing was written")

    def blame_model(self, why: str) -> str:
        """Return an error message that gives the model as the cause, and what to do."""
        if self.is_by_rules:
            return f"{why}; nothing was written"
        return f"{model_failure(self.model.name, why)}; nothing was written; {MODEL_ADVICE}"

    def choose_failure(self, error: MunimentError, why: str) -> Exception:
        """Return the exception to raise if the model failed: `error`, or a fall back to the rules."""
        is_final = self.is_by_rules or self.place.on_model_failure == "fail"
        return error if is_final else FallBackToRules(why)

    def replacement_error(self) -> Exception:
        """Return the exception to raise if a change would replace an entry that it may not replace."""
        if self.is_by_rules:
            return RememberRefused("rejected: a fact that ends must be a separate entry")
        return FallBackToRules("it would have replaced an entry with text that is not from the fact")

    def end_of(self, text: str) -> End | None:
        """Return when a text ends: an item of a list by its own text, unless the caller gave an end."""
        content = redacted(self.content) if self.place.policy.content.secrets == "redact" else self.content
        if self.request.expires is None and comparable(text) in map(comparable, separate_items(content)):
            return find_text_end(text.strip())
        return self.ends

    def lasts(self, content: bytes) -> bool:
        """Return whether an entry does not end before the fact, or the items of a list in it."""
        entry, items = parse(content), separate_items(self.content)
        said = [item for item in items if comparable(item) in sayings(entry.body)]
        return all(entry.lasts(self.end_of(each)) for each in said or [self.content])


def failed(message: str) -> JobFailed:
    """Return the error of a failed remember."""
    return JobFailed(message, code="remember_failed")


def body_of(content: bytes) -> str:
    """Return the text of an entry; empty if the file is invalid."""
    try:
        return parse(decode(content)).body
    except ToolError:
        return ""  # The gates report this error.


def read_end(request: RememberRequest, fact: str) -> End | None:
    """Return when a fact ends: as the caller requested, or else by its own text."""
    if request.expires is None:
        return find_text_end(fact)
    try:
        return End(read_expiry(request.expires, local_day()), is_explicit=True)
    except ValueError:
        raise InvalidContent(
            f"invalid expiry {shortened(on_one_line(request.expires), EXPIRY_CHARS)!r}: "
            "use today or a later day (2026-12-31), or a number of days (30d)",
            code="invalid_expires",
        ) from None


def find_text_end(text: str) -> End | None:
    """Return the end that a text states, if any."""
    day = find_end(text, local_day())
    return None if day is None else End(day)
