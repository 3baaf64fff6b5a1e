"""The answers of the tools: the fields of each, made of results of operations, and the text for the model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from muniment.content.gates import one_line
from muniment.integrations.telling import marked

if TYPE_CHECKING:
    from muniment.types import DreamResult, ForgetResult


class ClosedModel(BaseModel):
    """A model that takes no other members than its own."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, from_attributes=True)


# -- answered ----------------------------------------------------------------------------------------


def _paths_of(entries: Iterable[Any]) -> list[str]:
    return [each.path for each in entries]


class McpAnswer(ClosedModel):
    """What a call is answered with: its fields, and the same as text for the model."""

    @classmethod
    def of(cls, result: object, **others: Any) -> Self:
        """Return the answer that has the members of an operation's result.

        Args:
            result: has the members by their names there.
            others: those that it does not have, or that replace its own.
        """
        names = {str(field.validation_alias or name) for name, field in cls.model_fields.items()}
        return cls.model_validate({name: getattr(result, name) for name in names - others.keys()} | others)

    @abstractmethod
    def told(self) -> str:
        """The text."""


class RememberAnswer(McpAnswer):
    """What a remember did."""

    task_id: str = Field(description="Takes it back with undo.")
    summary: str
    paths: list[str] = Field(validation_alias="files_touched", description="The entries that were written.")
    trust: str | None = Field(description="Of what was written; null: nothing was.")
    similar: Annotated[list[str], BeforeValidator(_paths_of)] = Field(
        description="Entries about the same that stay, since the fact does not say that something changed."
    )
    notes: list[str]

    def told(self) -> str:
        """As of `McpAnswer`; so do all of these."""
        similar = (f"similar: {path}" for path in self.similar)
        return _lines(f"task: {self.task_id}", [self.summary, *similar, *self.notes])


class RecalledPath(ClosedModel):
    """An entry that a recall found; its text stands in the answer's."""

    path: str
    trust: str
    at: str = Field(description="When it was written.")


class RecallAnswer(McpAnswer):
    """What helps with a message."""

    text: str = Field(description="The entries, as data between marks; empty if nothing helps.")
    entries: list[RecalledPath]
    abstained: bool = Field(description="Nothing in the memory is about the message.")
    notes: list[str] = Field(description="What the user should know.")

    def told(self) -> str:
        """Return the entries, after what the user should know."""
        text = self.text or "Nothing in the memory is about that."
        return "\n".join(filter(None, [_lines("", self.notes), text]))


class ShowAnswer(McpAnswer):
    """An entry."""

    path: str
    trust: str | None = Field(description="Who it comes from: owner, workspace, agent or external.")
    text: str = Field(description="The file, as data between marks.")

    def told(self) -> str:
        """The entry."""
        return self.text


class McpHistoryStep(ClosedModel):
    """What one task did to one file."""

    at: str
    task_id: str = Field(validation_alias="task")
    task: str = Field(
        validation_alias="asked", description="What that was: remember, forget, undo, and so on."
    )
    path: str
    change: Literal["new", "changed", "removed"] = Field(validation_alias="kind")
    trust: str | None = Field(description="Of what it wrote; null: it removed the file.")


class HistoryAnswer(McpAnswer):
    """What was committed, the newest first."""

    steps: list[McpHistoryStep]
    more: bool = Field(description="There are older ones; ask for the history of a path.")

    def told(self) -> str:
        """A line a step."""
        if not self.steps:
            return "Nothing was committed there."
        lines = [
            f"{each.at} {each.task_id} {each.change} {each.path}"
            + (f" (trust: {each.trust})" if each.trust else "")
            for each in self.steps
        ]
        return marked("\n".join(map(one_line, lines))) + ("\n(there are older ones)" if self.more else "")


class PreviewedAnswer(McpAnswer):
    """What an operation that removes entries did, or would do."""

    tool: ClassVar[str]
    arguments: ClassVar[str]
    done: bool = Field(description="false: a preview; nothing was removed.")
    digest: str | None = Field(
        description="Of a preview that names something: give it with yes to have it done."
    )
    task_id: str | None = Field(description="Takes it back with undo; null: nothing was removed.")
    text: str = Field(description="What it is about, as data between marks; empty: nothing.")
    paths: list[str]
    notes: list[str]

    @classmethod
    def of_lines(
        cls, result: ForgetResult | DreamResult, lines: Mapping[str, Iterable[str]], *, dry_run: bool
    ) -> Self:
        """Return the answer for a result of which each path has lines that say what it is about.

        Args:
            result: of the operation.
            lines: by path.
            dry_run: whether it was a preview.
        """
        shown = [line for each in lines.values() for line in each]
        is_done = bool(lines) and not dry_run
        return cls(
            done=is_done,
            digest=result.digest if dry_run else None,
            task_id=result.task_id if is_done else None,
            text=marked("\n".join(shown)) if shown else "",
            paths=list(lines),
            notes=[*([] if lines else [result.summary]), *result.notes],
        )

    def told(self) -> str:
        """What to do next, and what it is about."""
        if self.done:
            first = f"removed. task: {self.task_id}"
        elif self.digest is None:
            first = "nothing was removed"
        else:
            how = (
                f"if {self.tool} is called with the same {self.arguments}, yes=true and digest={self.digest}"
            )
            first = f"nothing was removed yet; this would go, {how}"
        return "\n".join(filter(None, [_lines(first, self.notes), self.text]))


class ForgetAnswer(PreviewedAnswer):
    """What went, or of a preview would go."""

    tool, arguments = "forget", "description"


class DreamAnswer(PreviewedAnswer):
    """The entries that were removed, or of a preview would be."""

    tool, arguments = "dream", "scope"


class PinAnswer(McpAnswer):
    """The place of an entry after it was pinned or unpinned."""

    task_id: str | None = Field(description="Undo takes it; null: a dry run, nothing was moved.")
    path: str = Field(description="Of the entry afterwards.")
    previous_path: str
    pinned: bool = Field(description="true: it is pinned; false: it was, and is no more.")
    notes: list[str]

    def told(self) -> str:
        """Return what was done, and both paths."""
        would = "" if self.task_id else "would be "
        first = f"{would}{'pinned' if self.pinned else 'unpinned'}. task: {self.task_id}"
        return _lines(first, [f"{self.previous_path} -> {self.path}", *self.notes])


class UndoAnswer(McpAnswer):
    """What was taken back."""

    task_id: str = Field(description="Of the undo; undo of that, where you may, brings it back.")
    undone: str
    paths: list[str]
    notes: list[str]

    def told(self) -> str:
        """What it was, and of which files."""
        paths = ", ".join(self.paths) or "nothing"
        return _lines(f"took back {self.undone}. task: {self.task_id}", [paths, *self.notes])


def _lines(first: str, quoted: Sequence[str]) -> str:
    """A line of ours, and others that may name files."""
    said = marked("\n".join(map(one_line, quoted))) if quoted else ""
    return "\n".join(filter(None, [one_line(first), said]))
