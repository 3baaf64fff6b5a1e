"""Load the function words of some large languages, from `function_words.toml`.

Descriptions of facts and file names are compared or built without them. They need different parts of the
file, and each part is compiled when it is first used.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from muniment.files import load_package_tables
from muniment.kernel.path import fold


@cache
def load_function_word_tables() -> Mapping[str, Any]:
    """Return the content of the file. Cost: reads it once per process."""
    return load_package_tables("muniment.content", "function_words")


@cache
def load_function_words() -> Mapping[str, frozenset[str]]:
    """Return the function words of each language, without the words that need a question word beside them."""
    tables = load_function_word_tables()
    near_question = frozenset(fold(tables["beside"]["words"]).split())
    return {name: frozenset(fold(line).split()) - near_question for name, line in tables["words"].items()}


def choose_languages(counts: Mapping[str, int]) -> list[str]:
    """Return the languages with the highest count, or none if all counts are 0."""
    most = max(counts.values(), default=0)
    return [name for name, count in counts.items() if most and count == most]
