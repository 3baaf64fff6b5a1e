"""The checks of the texts of requests, and their limits."""

from __future__ import annotations

from typing import Final

from muniment.content.exact_json import whole_text
from muniment.content.gates import drop_invisible
from muniment.errors import InvalidContent
from muniment.kernel.normal_forms import MAX_MARKS, overlong_run
from muniment.names import MAX_FACT_BYTES

MAX_TASK_CHARS: Final = 100
"""Characters of a task's id."""

MAX_QUERY_BYTES: Final = MAX_FACT_BYTES
"""Bytes of a query: whoever wants a fact forgotten may send the fact."""

MAX_QUERY_WORDS: Final = 64
"""Significant words of a query: some sentences. All of them are looked for in every entry."""

SHOWN_PATHS: Final = 10
"""Paths that an error names, or an answer as near; a preview names all that would go."""


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
