"""Load the function words of some large languages, from `function_words.toml`.

Descriptions of facts are compared without them, and file names are built without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from muniment.files import load_package_tables


@cache
def load_function_word_tables() -> Mapping[str, Any]:
    """Return the content of the file. Cost: reads it once per process."""
    return load_package_tables("muniment.content", "function_words")


def choose_languages(counts: Mapping[str, int]) -> list[str]:
    """Return the languages with the highest count, or none if all counts are 0."""
    most = max(counts.values(), default=0)
    return [name for name, count in counts.items() if most and count == most]
