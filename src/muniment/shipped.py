"""Tables that come with the program, beside the code that reads them."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any


def shipped_tables(package: str, name: str) -> dict[str, Any]:
    """What `name`.toml of a package of ours says. Cost: reads and parses it, so whoever asks keeps it."""
    return tomllib.loads(shipped_text(package, f"{name}.toml"))


def shipped_text(package: str, name: str) -> str:
    """Return the text of a file of a package of ours."""
    return files(package).joinpath(name).read_text(encoding="utf-8")
