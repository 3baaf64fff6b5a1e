"""Tables that come with the program, beside the code that reads them."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any


def shipped_tables(package: str, name: str) -> dict[str, Any]:
    """What `name`.toml of a package of ours says. Cost: reads and parses it, so whoever asks keeps it."""
    return tomllib.loads(files(package).joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def shipped_lines(package: str, name: str) -> list[str]:
    """Return the lines of `name`.txt of a package of ours."""
    return files(package).joinpath(f"{name}.txt").read_text(encoding="utf-8").splitlines()
