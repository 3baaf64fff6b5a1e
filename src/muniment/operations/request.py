"""Validation of the texts of requests, and their limits."""

from __future__ import annotations

from typing import Final

from muniment.content.exact_json import replace_lone_surrogates
from muniment.content.gates import drop_invisible
from muniment.errors import InvalidContent
from muniment.kernel.normal_forms import MAX_MARKS, find_overlong_run
from muniment.names import MAX_FACT_BYTES

MAX_TASK_CHARS: Final = 100
"""Maximum number of characters of a task id."""

MAX_QUERY_BYTES: Final = MAX_FACT_BYTES
"""Maximum number of bytes of a query. It equals the limit of a fact: a caller may forget a fact by its text.
"""

MAX_QUERY_WORDS: Final = 64
"""Maximum number of significant words of a query, enough for a few sentences.

Every entry is searched for all of these words.
"""

MAX_LISTED_PATHS: Final = 10
"""Maximum number of paths in an error, and of near entries in a response.

A preview lists every path that would be removed, without this limit.
"""


def check_content(content: str) -> str:
    """Validate the text of a fact or query, and return it cleaned.

    White space at both ends and needless invisible characters are removed; a lone surrogate becomes U+FFFD.

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
    """Validate the text of a query as `check_content` does, and return it cleaned.

    Args:
        query: any text.
        purpose: the verb in the message about an empty query: "describe what to recall".

    Raises:
        InvalidContent: the query is empty, or `check_content` rejects it.
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
