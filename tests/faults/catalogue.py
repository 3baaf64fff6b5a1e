"""Read the faults from the TOML files of this folder."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Fault:
    """A realistic mistake.

    Attributes:
        name: the effect of the mistake.
        group: the name of its file, which is the name of a package.
        find: a text that occurs once in the package.
        replace: the replacement.
    """

    name: str
    group: str
    find: str
    replace: str

    def find_module(self, texts: Mapping[Path, str]) -> Path:
        """Return the module that contains the text.

        Raises:
            ValueError: no module contains it, or it occurs more than once.
        """
        modules = [path for path, text in texts.items() if self.find in text]
        if len(modules) != 1 or texts[modules[0]].count(self.find) != 1:
            raise ValueError(
                f"{self.group}: {self.name}: the text occurs in {len(modules)} files, or several times in one"
            )
        return modules[0]

    def apply(self, text: str) -> str:
        """Return a module's text with the mistake."""
        return text.replace(self.find, self.replace)


def read_sources(sources: Path) -> dict[Path, str]:
    """Read every module, and every SQL file of the fleet's tables."""
    return {path: path.read_text() for kind in ("*.py", "*.sql") for path in sources.rglob(kind)}


def load_faults() -> Iterator[Fault]:
    """Load all faults by group."""
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for table in tomllib.loads(path.read_text())["fault"]:
            yield Fault(group=path.stem, **table)
