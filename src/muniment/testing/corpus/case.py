"""The cases as they stand in the files beside this one.

`escapes.json` is a published set, kept byte for byte; `own.json` holds what this project added to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

FILES: Final = ("escapes.json", "own.json")

Case = Mapping[str, Any]
"""One case, in the format of `README.md`."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Cases by id, and the text that must not come out."""

    canary: str
    cases: Mapping[str, Case]


def load_corpus(*names: str) -> Corpus:
    """The shipped cases.

    Args:
        names: of the files to take them from, all of `FILES` if none is named.

    Raises:
        ValueError: the files do not belong together: they have two canaries, or an id twice.
    """
    documents = [json.loads(files(__package__).joinpath(name).read_text("utf-8")) for name in names or FILES]
    cases = [case for document in documents for case in document["cases"]]
    by_id = {case["id"]: case for case in cases}
    if len(by_id) != len(cases):
        raise ValueError("an id stands twice")
    (canary, *others) = {document["canary"] for document in documents}
    if others:
        raise ValueError("the files have several canaries")
    return Corpus(canary, by_id)
