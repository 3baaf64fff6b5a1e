"""Validation of the texts of requests, and their limits."""

from __future__ import annotations

from typing import Final

from muniment.content.exact_json import replace_lone_surrogates
from muniment.content.gates import drop_invisible
from muniment.errors import InvalidContent
from muniment.kernel.normal_forms import MAX_MARKS, find_overlong_run
from muniment.names import MAX_FACT_BYTES

MAX_TASK_CHARS: Final = 100
"""Characters of a task's id."""

MAX_QUERY_BYTES: Final = MAX_FACT_BYTES
"""Bytes of a query, as many as a fact may have: a caller may forget a fact by sending its text."""

MAX_QUERY_WORDS: Final = 64
"""Significant words of a query, enough for a few sentences. Every entry is searched for all of them."""

MAX_LISTED_PATHS: Final = 10
"""Paths that an error lists, or a response as near matches; a preview lists every path that would be removed.
"""


def check_content(content: str) -> str:
    """Return `content` trimmed, without needless invisible characters, with U+FFFD for lone surrogates.

    Raises:
        InvalidContent: the text is empty or too long, or contains NUL or too many combining marks in a row.
    """
    fact = drop_invisible(replace_lone_surrogates(content)).strip()
    if not fact:
        raise InvalidContent("the fact is empty: pass the text to remember")
    if "\0" in fact:
        raise InvalidContent("the text contains a NUL character; remove it")
    size = count_bytes(fact)
    if size > MAX_FACT_BYTES:
        raise InvalidContent(f"the text has {size} bytes; use at most {MAX_FACT_BYTES}")
    if find_overlong_run(fact) is not None:
        raise InvalidContent(f"the text contains more than {MAX_MARKS} combining marks in a row; remove them")
    return fact


def check_query(query: str, purpose: str = "recall") -> str:
    """Validate `query` like a fact (`check_content`) and return it.

    Args:
        query: any text.
        purpose: a verb for the message.

    Raises:
        InvalidContent: the query is empty (with a message for this case), or `check_content` rejects it.
    """
    if not query.strip():
        raise InvalidContent(f"the query is empty: describe what to {purpose}")
    return check_content(query)


def count_bytes(text: str) -> int:
    """Return the number of UTF-8 bytes of a text.

    Raises:
        InvalidContent: the text contains a lone surrogate.
    """
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidContent("the text is not valid Unicode: it contains a lone surrogate") from None
