"""The requests of jobs, and the checks of their texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from muniment.content.exact_json import whole_text
from muniment.content.gates import drop_invisible
from muniment.errors import InvalidContent
from muniment.kernel.names import Trust
from muniment.kernel.path import MAX_MARKS, overlong_run
from muniment.names import MAX_FACT_BYTES, ContextMode

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


# -- dream request -----------------------------------------------------------------------------------


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
