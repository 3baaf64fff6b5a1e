"""Of which files a call has shown text, read from its answer by the broker. Pure.

It decides how far the words of a run are trusted, so it is not asked of the worker.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from muniment.errors import PathEscape, Refusal
from muniment.names import Scope
from muniment.policy.grammar import canonicalise
from muniment.tools.arguments import path_of
from muniment.tools.outcome import Outcome

_HIT: Final = re.compile(r"([^:]+):[0-9]+: ")  # a path holds no colon


def paths_shown(
    tool: object, arguments: object, outcome: Outcome, scopes: Collection[Scope]
) -> frozenset[str]:
    """Canonical logical paths, links not resolved; empty where the call was not allowed."""
    if outcome.verdict != "allow":
        return frozenset()
    match tool:
        case "read_file" | "edit":
            named = [path_of(arguments)]
        case "grep":
            named = [hit[1] for line in outcome.text.split("\n") if (hit := _HIT.match(line))]
        case _:
            return frozenset()
    found: set[str] = set()
    for unsafe_path in dict.fromkeys(named):
        try:
            found.add(canonicalise(unsafe_path, scopes).text)
        except (PathEscape, Refusal):
            continue  # The last lines of a grep speak of the answer, not of a file.
    return frozenset(found)
