"""The state of a remember over its attempts, and the failures that fall back to the rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from muniment.agent.model import Model
from muniment.agent.runner import Observer, Witness
from muniment.cancelling import Cancel
from muniment.content.entry import parse, shorten
from muniment.content.expiry import End, compute_local_day, find_end, parse_expiry
from muniment.content.gates import clean_foreign_line, decode
from muniment.content.provenance import contains_fact, split_separate_items
from muniment.content.secrets import redact_secrets
from muniment.content.words import build_comparison_key, list_statements
from muniment.errors import InvalidContent, JobFailed, MunimentError, RememberRefused, ToolError
from muniment.names import Confinement
from muniment.operations.job import MODEL_ADVICE, Job, describe_model_failure
from muniment.operations.job_context import JobContext
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
        confinement: the confinement of the last run's worker; None: the run did not start a worker.
        similar: entries that the new ones of the last run are linked to, by path.
    """

    kind = KIND

    def __init__(
        self,
        request: RememberRequest,
        context: JobContext,
        model: Model,
        cancel: Cancel,
        observe: Observer,
        witness: Witness,
    ) -> None:
        super().__init__(context, model, cancel, request.trust, request.task_id, is_dry=request.dry_run)
        self.request, self.observe, self.witness = request, observe, witness
        self.content = ""
        self.ends: End | None = None
        self.confinement: Confinement | None = None
        self.similar: Mapping[str, SimilarEntry] = {}

    def create_result(self) -> RememberResult:
        """Return the result of a task that has not written anything."""
        members = self.create_common_members() | {"notes": (*self.context.advice, *self.notes)}
        return RememberResult(
            **members,
            status="dry_run" if self.is_dry else "completed",
            files_touched=(),
            enforcement=self.confinement.enforcement if self.confinement else None,
            missing_layers=self.confinement.missing if self.confinement else (),
        )

    def require_fact(self, fact: str, texts: Collection[str]) -> None:
        """Check that the written or cited texts contain `fact` (step 6).

        If the rules stored a list of facts, the texts must contain all its items.
        """
        if not self.uses_rules:
            if not contains_fact(tuple(texts), fact):
                raise FallBackToRules("the text that it wrote or cited does not contain the fact")
            return
        items = set(map(build_comparison_key, split_separate_items(fact)))
        is_complete = any(text.strip() == fact.strip() for text in texts)
        if not is_complete and not items <= set().union(*map(list_statements, texts)):
            raise create_failure("a part of the list could not be stored; nothing was written")

    def describe_model_failure(self, why: str) -> str:
        """Return an error message that gives the model as the cause, and what to do."""
        if self.uses_rules:
            return f"{why}; nothing was written"
        return f"{describe_model_failure(self.model.name, why)}; nothing was written; {MODEL_ADVICE}"

    def choose_failure(self, error: MunimentError, why: str) -> Exception:
        """Return the exception to raise if the model failed: `error`, or a fall back to the rules."""
        is_final = self.uses_rules or self.context.on_model_failure == "fail"
        return error if is_final else FallBackToRules(why)

    def create_replacement_error(self) -> Exception:
        """Return the exception to raise if a change would replace an entry that it may not replace."""
        if self.uses_rules:
            return RememberRefused("rejected: a fact that ends must be a separate entry")
        return FallBackToRules("it would have replaced an entry with text that is not from the fact")

    def find_end(self, text: str) -> End | None:
        """Return when a text ends: an item of a list by its own text, unless the caller gave an end."""
        content = (
            redact_secrets(self.content) if self.context.policy.content.secrets == "redact" else self.content
        )
        if self.request.expires is None and build_comparison_key(text) in map(
            build_comparison_key, split_separate_items(content)
        ):
            return find_text_end(text.strip())
        return self.ends

    def covers_end(self, content: bytes) -> bool:
        """Return whether an entry does not end before the fact, or the items of a list in it."""
        entry, items = parse(content), split_separate_items(self.content)
        contained_items = [
            item for item in items if build_comparison_key(item) in list_statements(entry.body)
        ]
        return all(entry.is_valid_until(self.find_end(each)) for each in contained_items or [self.content])


def create_failure(message: str) -> JobFailed:
    """Return the error of a failed remember."""
    return JobFailed(message, code="remember_failed")


def read_body(content: bytes) -> str:
    """Return the text of an entry; empty if the file is invalid."""
    try:
        return parse(decode(content)).body
    except ToolError:
        return ""  # The gates report this error.


def determine_end(request: RememberRequest, fact: str) -> End | None:
    """Return when a fact ends: as the caller requested, or else by its own text."""
    if request.expires is None:
        return find_text_end(fact)
    try:
        return End(parse_expiry(request.expires, compute_local_day()), is_explicit=True)
    except ValueError:
        raise InvalidContent(
            f"invalid expiry {shorten(clean_foreign_line(request.expires), EXPIRY_CHARS)!r}: "
            "use today or a later day (2026-12-31), or a number of days (30d)",
            code="invalid_expires",
        ) from None


def find_text_end(text: str) -> End | None:
    """Return the end that a text states, if any."""
    day = find_end(text, compute_local_day())
    return None if day is None else End(day)
