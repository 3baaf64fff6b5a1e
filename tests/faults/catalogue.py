"""The faults, read from the files beside this one."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Fault:
    """A mistake that somebody could make.

    Attributes:
        name: what is wrong with it.
        group: the file that it stands in, which is named after packages.
        find: stands once in the package, wherever.
        replace: what is written instead.
    """

    name: str
    group: str
    find: str
    replace: str

    def found_in(self, texts: Mapping[Path, str]) -> Path:
        """The module that holds it, among the texts of all.

        Raises:
            ValueError: it stands in none, or more than once.
        """
        holders = [path for path, text in texts.items() if self.find in text]
        if len(holders) != 1 or texts[holders[0]].count(self.find) != 1:
            raise ValueError(
                f"{self.group}: {self.name}: it stands in {len(holders)} files, or several times in one"
            )
        return holders[0]

    def made_in(self, text: str) -> str:
        """A module's text with the mistake in it."""
        return text.replace(self.find, self.replace)


def texts_below(sources: Path) -> dict[Path, str]:
    """The text of every module, and of what makes the tables of a fleet."""
    return {path: path.read_text() for kind in ("*.py", "*.sql") for path in sources.rglob(kind)}


def faults() -> Iterator[Fault]:
    """All of them, by group."""
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for table in tomllib.loads(path.read_text())["fault"]:
            yield Fault(group=path.stem, **table)
