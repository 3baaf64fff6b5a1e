"""Names that look like ours, or like those of files that other agents load as instructions.

- L1. Two names look alike if their skeletons are equal: without white space, without case, every character by
  the letter that it looks like, `i`, `1` and `|` as `l`, `0` as `o`, `rn` as `m`, `vv` as `w` (UTS #39, 4).
- L2. A name that only differs in case is not told here: that deny rules cover, and what may stand depends on
  the policy.

Names and table are data, in `lookalikes.toml`. What does not hold: scripts and fonts have lookalikes that the
standard does not list; `MEMORY-.md` is another name for everybody who reads it.

Attacked in tests/policy/test_lookalikes.py.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, Final

from muniment.policy.normal import normalised

_ASCII: Final = str.maketrans("i1|0", "lllo")


@cache
def tables() -> dict[str, dict[str, str]]:
    """`names` with their sources, and `confusables`. Cost: reads one file of the package, once a process."""
    text: Any = files("muniment.policy").joinpath("lookalikes.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def looked_like(name: str) -> str | None:
    """The reserved name that `name` is taken for without being it (L1, L2). Cost: 1 µs, 5 beyond ASCII."""
    reserved = _reserved().get(skeleton(name))
    return None if reserved is None or reserved.lower() == name.lower() else reserved


def skeleton(name: str) -> str:
    """What is left of a name when all that looks alike is the same (L1)."""
    if not name.isascii():
        name = normalised("NFKC", name.translate(_letters()).casefold()).translate(_letters())
    name = "".join(name.lower().split()).translate(_ASCII)
    return name.replace("rn", "m").replace("vv", "w")


@cache
def _reserved() -> dict[str, str]:
    return {skeleton(name): name for name in tables()["names"]}


@cache
def _letters() -> dict[int, str]:
    return {ord(char): letter for letter, chars in tables()["confusables"].items() for char in chars}
