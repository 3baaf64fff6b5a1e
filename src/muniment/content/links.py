"""The relative links of an entry: which files of its scope it means. Pure; nothing here is ever opened."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from muniment.content.blocks import read_lines
from muniment.names import MAX_PATH_BYTES, RelPath

_TARGET: Final = re.compile(rf"\]\([ \t]{{0,8}}<?([^)\s<>]{{1,{MAX_PATH_BYTES}}})")
_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")


def relative_links(body: str, rel: RelPath) -> Iterator[RelPath]:
    """The paths inside the scope that inline links of a body mean, each as often as it is linked.

    Links in code, links with a scheme, absolute ones and those that lead out of the scope are left out.

    Args:
        body: the text behind the front matter.
        rel: path of the entry inside the scope, from whose folder its links go.
    """
    if "](" not in body:
        return
    for line in read_lines(body):
        if line.kind in {"fence", "code", "html"}:
            continue
        for found in _TARGET.finditer(body, line.start, line.end):
            target = unquote(found[1].partition("#")[0].partition("?")[0])
            if target and not target.startswith("/") and _SCHEME.match(target) is None:
                path = _joined(rel.rpartition("/")[0], target)
                if path is not None:
                    yield path


def _joined(folder: str, target: str) -> RelPath | None:
    """Where a target leads from a folder; None: out of the scope, or to the scope itself."""
    steps = folder.split("/") if folder else []
    for step in target.split("/"):
        if step == "..":
            if not steps:
                return None
            steps.pop()
        elif step not in {"", "."}:
            steps.append(step)
    return RelPath("/".join(steps)) if steps else None
