"""The state of a remember task (`RememberJob`), and the failures after which the rules store the fact."""

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
"""Maximum number of characters that an error quotes from an invalid expiry."""


class FallBackToRules(Exception):
    """Failure of the model to store the fact, after which the rules store it. The message is the reason."""


class RememberJob(Job):
    """One remember task. All attempts of the task use the same object.

    Attributes:
        content: the text of the fact, after `check_content`.
        ends: when the fact ends; None: never.
        confinement: the confinement of the last run's worker; None: no worker was started.
        similar: the existing entries that the new entries of the last run are linked to, by path.
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
        """Return the result of this task for the case that it wrote nothing."""
        members = self.create_common_members() | {"notes": (*self.context.advice, *self.notes)}
        return RememberResult(
            **members,
            status="dry_run" if self.is_dry else "completed",
            files_touched=(),
            enforcement=self.confinement.enforcement if self.confinement else None,
            missing_layers=self.confinement.missing if self.confinement else (),
        )

    def require_fact(self, fact: str, texts: Collection[str]) -> None:
        """Check that the texts that a run wrote or cited contain `fact`.

        If the rules stored a list of facts, the texts must contain all its items.

        Raises:
            FallBackToRules: the texts of a language model do not contain the fact.
            JobFailed: the rules could not store a part of the list.
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
        """Return an error message for a failure of the model, with the reason and advice for the user."""
        if self.uses_rules:
            return f"{why}; nothing was written"
        return f"{describe_model_failure(self.model.name, why)}; nothing was written; {MODEL_ADVICE}"

    def choose_failure(self, error: MunimentError, why: str) -> Exception:
        """Return the exception to raise after a failure of the model.

        This is `error` if the rules may not take over, and `FallBackToRules` otherwise.
        """
        is_final = self.uses_rules or self.context.on_model_failure == "fail"
        return error if is_final else FallBackToRules(why)

    def create_replacement_error(self) -> Exception:
        """Return the exception for a change that would replace an entry although it must not."""
        if self.uses_rules:
            return RememberRefused(
                "rejected: a fact with an end date must be a separate entry; nothing was written"
            )
        return FallBackToRules("it would have replaced an entry with text that is not from the fact")

    def find_end(self, text: str) -> End | None:
        """Return when the fact in `text` ends, or None if it never ends.

        If the request has no expiry, an item of a list of facts ends at the date in its own text. Any other
        text ends when the whole fact ends.
        """
        content = (
            redact_secrets(self.content) if self.context.policy.content.secrets == "redact" else self.content
        )
        if self.request.expires is None and build_comparison_key(text) in map(
            build_comparison_key, split_separate_items(content)
        ):
            return find_text_end(text.strip())
        return self.ends

    def covers_end(self, content: bytes) -> bool:
        """Return whether an entry is valid at least as long as the fact, or as the items of a list in it."""
        entry, items = parse(content), split_separate_items(self.content)
        contained_items = [
            item for item in items if build_comparison_key(item) in list_statements(entry.body)
        ]
        return all(entry.is_valid_until(self.find_end(each)) for each in contained_items or [self.content])


def create_failure(message: str) -> JobFailed:
    """Return the error of a failed remember, with this message."""
    return JobFailed(message, code="remember_failed")


def read_body(content: bytes) -> str:
    """Return the body of an entry, or an empty text if the file is invalid."""
    try:
        return parse(decode(content)).body
    except ToolError:
        return ""  # The gates report this error.


def determine_end(request: RememberRequest, fact: str) -> End | None:
    """Return when a fact ends: at the date in the request, or else at the date that its text states."""
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
    """Return the end that a text states, or None if it states no end."""
    day = find_end(text, compute_local_day())
    return None if day is None else End(day)
