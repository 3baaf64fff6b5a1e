"""The resources that a run used and the changes that it made.

Separate from `results`, whose many classes take 18 ms to import; recall and the list of entries need only
these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from muniment.kernel.change import ChangeKind
from muniment.kernel.names import Digest
from muniment.types.documents import LOCAL, WireDocument


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of a model's turn, as its server counted them; zero if the server did not count."""

    input_tokens: int = 0
    output_tokens: int = 0

    def add(self, other: Usage) -> Usage:
        """Return the sum of this usage and `other`."""
        return Usage(self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens)


@dataclass(frozen=True, slots=True)
class Turn:
    """The duration and the tokens of one turn of the model.

    Attributes:
        seconds: the time from the request to the response or failure.
        usage: the tokens; zero after a failure.
    """

    seconds: float
    usage: Usage


@dataclass(frozen=True, slots=True)
class SupersededEntry(WireDocument):
    """An outdated entry that a new fact replaced; the new entry has the same path and id."""

    noun = "a superseded entry"
    path: str
    id: Annotated[str, "The id in the provenance of the entry; empty if it had no provenance."]
    previous_text: Annotated[str, "The old text's beginning, one line."] = field(default="", metadata=LOCAL)


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one file, as a result shows it to callers.

    Attributes:
        path: the path in the memory, such as `user/editor.md`.
        kind: whether the file is created, modified or deleted.
        sha256_before: digest of the old content; None for a new file.
        sha256_after: digest of the new content; None for a deleted file.
        superseded: the outdated entry that a fact replaced at this path; None if the fact replaced no entry.
        renamed_from: for a created file: the path that its entry had before; None if the entry is new.
        title: the title of the new content; of a deleted file, of the old one. Empty if it is unknown.
        handle: the short name of the entry; empty if it is unknown.
    """

    path: str
    kind: ChangeKind
    sha256_before: Digest | None
    sha256_after: Digest | None
    superseded: SupersededEntry | None = None
    renamed_from: str | None = None
    title: str = ""
    handle: str = ""
