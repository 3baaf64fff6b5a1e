"""Define the responses of the MCP tools: their fields, and the same content as text for the model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from muniment.content.gates import clean_line
from muniment.integrations.results import quote_as_data
from muniment.store.handles import build_task_handle

if TYPE_CHECKING:
    from muniment.types import DreamResult, ForgetResult


class ClosedModel(BaseModel):
    """A model that rejects unknown members."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, from_attributes=True)


# -- responses ---------------------------------------------------------------------------------------


def _list_paths(entries: Iterable[Any]) -> list[str]:
    return [each.path for each in entries]


class McpAnswer(ClosedModel):
    """The response to a tool call: structured fields, and the same content as text for the model."""

    @classmethod
    def from_result(cls, result: object, **others: Any) -> Self:
        """Create the response from the result of an operation.

        Args:
            result: the object whose attributes have the names of the response's fields.
            others: the values of fields that the result does not have, or that are replaced.
        """
        names = {str(field.validation_alias or name) for name, field in cls.model_fields.items()}
        return cls.model_validate({name: getattr(result, name) for name in names - others.keys()} | others)

    @abstractmethod
    def to_text(self) -> str:
        """Return the content of the response as text for the model."""


class RememberAnswer(McpAnswer):
    """The result of a remember."""

    task_id: str = Field(description="Pass it to undo to reverse this.")
    summary: str
    paths: list[str] = Field(validation_alias="files_touched", description="The written entries.")
    trust: str | None = Field(description="Trust of the written text; null: nothing was written.")
    similar: Annotated[list[str], BeforeValidator(_list_paths)] = Field(
        description="Similar entries that stay, since the fact does not state a change."
    )
    notes: list[str]

    def to_text(self) -> str:
        """Return the content of the response as text for the model."""
        similar = (f"similar: {path}" for path in self.similar)
        return _format_lines(
            f"task: {build_task_handle(self.task_id)}", [self.summary, *similar, *self.notes]
        )


class RecalledPath(ClosedModel):
    """An entry that a recall found; its text is in the `text` of the response."""

    path: str
    trust: str
    at: str = Field(description="When it was written.")


class RecallAnswer(McpAnswer):
    """The entries that help with a message."""

    text: str = Field(description="The entries, as data between marks; empty if there are none.")
    entries: list[RecalledPath]
    abstained: bool = Field(description="true: no entry is about the message.")
    notes: list[str] = Field(description="Remarks for the user.")

    def to_text(self) -> str:
        """Return the remarks for the user, then the entries."""
        text = self.text or "No entry matches."
        return "\n".join(filter(None, [_format_lines("", self.notes), text]))


class ContextAnswer(McpAnswer):
    """The standing context of a session."""

    text: str = Field(
        description="The notes of the user, then other entries as data between marks; may be empty."
    )
    tokens: int = Field(description="Approximate tokens of the text.")

    def to_text(self) -> str:
        """Return the text of the standing context."""
        return self.text or "The memory is empty."


class ShowAnswer(McpAnswer):
    """An entry."""

    path: str
    trust: str | None = Field(description="Its source: owner, workspace, agent or external.")
    text: str = Field(description="The file, as data between marks.")

    def to_text(self) -> str:
        """Return the entry."""
        return self.text


class McpHistoryStep(ClosedModel):
    """The change of one file by one task."""

    at: str
    task_id: str = Field(validation_alias="task")
    task: str = Field(
        validation_alias="asked", description="The kind of task: remember, forget, undo, and so on."
    )
    path: str
    change: Literal["new", "changed", "removed"] = Field(validation_alias="kind")
    trust: str | None = Field(description="Trust of the written text; null: the file was removed.")
    handle: str = Field(description="The short name of the entry.")
    task_handle: str = Field(description="The short name of the task, accepted by undo.")


class HistoryAnswer(McpAnswer):
    """The committed changes, newest first."""

    steps: list[McpHistoryStep]
    more: bool = Field(description="true: there are older steps; request the history of a path.")

    def to_text(self) -> str:
        """Return one line for each step."""
        if not self.steps:
            return "No changes were committed there."
        lines = [
            f"{each.at} {each.task_handle} {each.change} {each.path} ({each.handle})"
            + (f" (trust: {each.trust})" if each.trust else "")
            for each in self.steps
        ]
        return quote_as_data("\n".join(map(clean_line, lines))) + (
            "\n(there are older steps)" if self.more else ""
        )


class PreviewedAnswer(McpAnswer):
    """A result that lists removed entries, or a preview of it."""

    tool: ClassVar[str]
    arguments: ClassVar[str]
    done: bool = Field(description="false: a preview; nothing was removed.")
    digest: str | None = Field(
        description="Of a preview that lists entries: call again with it and yes to remove them."
    )
    task_id: str | None = Field(description="Pass it to undo to reverse this; null: nothing was removed.")
    text: str = Field(description="The affected entries, as data between marks; empty if there are none.")
    paths: list[str]
    notes: list[str]

    @classmethod
    def from_lines(
        cls, result: ForgetResult | DreamResult, lines: Mapping[str, Iterable[str]], *, dry_run: bool
    ) -> Self:
        """Create the response from the result of an operation.

        Args:
            result: the result.
            lines: the lines that describe each path.
            dry_run: whether the result is only a preview.
        """
        text_lines = [line for each in lines.values() for line in each]
        is_done = bool(lines) and not dry_run
        return cls(
            done=is_done,
            digest=result.digest if dry_run else None,
            task_id=result.task_id if is_done else None,
            text=quote_as_data("\n".join(text_lines)) if text_lines else "",
            paths=list(lines),
            notes=[*([] if lines else [result.summary]), *result.notes],
        )

    def to_text(self) -> str:
        """Return the next step, and the affected entries."""
        if self.done:
            first = f"removed. task: {build_task_handle(self.task_id or '')}"
        elif self.digest is None:
            first = "nothing was removed"
        else:
            condition = (
                f"if {self.tool} is called with the same {self.arguments}, yes=true and digest={self.digest}"
            )
            first = f"nothing was removed yet; this is removed {condition}"
        return "\n".join(filter(None, [_format_lines(first, self.notes), self.text]))


class ForgetAnswer(PreviewedAnswer):
    """The removed entries, or in a preview those that would be removed."""

    tool, arguments = "forget", "description"


class DreamAnswer(PreviewedAnswer):
    """The removed entries, or in a preview those that would be removed."""

    tool, arguments = "dream", "scope"


class PinAnswer(McpAnswer):
    """The path of an entry after it was pinned or unpinned."""

    task_id: str | None = Field(
        description="Pass it to undo to reverse this; null: a dry run, nothing was moved."
    )
    path: str = Field(description="The path afterwards.")
    previous_path: str
    pinned: bool = Field(description="true: now pinned; false: now unpinned.")
    notes: list[str]

    def to_text(self) -> str:
        """Return what was done, and both paths."""
        prefix = "" if self.task_id else "would be "
        task = f" task: {build_task_handle(self.task_id)}" if self.task_id else ""
        first = f"{prefix}{'pinned' if self.pinned else 'unpinned'}.{task}"
        return _format_lines(first, [f"{self.previous_path} -> {self.path}", *self.notes])


class UndoAnswer(McpAnswer):
    """The result of an undo."""

    task_id: str = Field(description="Of this undo; undo it, if allowed, to restore the changes.")
    undone: str
    paths: list[str]
    notes: list[str]

    def to_text(self) -> str:
        """Return the undone task, and its files."""
        paths = ", ".join(self.paths) or "nothing"
        return _format_lines(
            f"undone: {build_task_handle(self.undone)}. task: {build_task_handle(self.task_id)}",
            [paths, *self.notes],
        )


def _format_lines(first: str, quoted: Sequence[str]) -> str:
    """Return a generated line, then lines that may contain file names, as data between marks."""
    quoted_text = quote_as_data("\n".join(map(clean_line, quoted))) if quoted else ""
    return "\n".join(filter(None, [clean_line(first), quoted_text]))
