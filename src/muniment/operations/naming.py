"""The name of an entry whose text is replaced.

A name is text: of whoever wrote the entry, or made by code from what the entry said. When the text is
replaced, a name that says what nobody says any more is replaced too.

- A1. If the new text is trusted more than the old one, no word of the path is kept that the new text does not
  say: the file is named by code, and folders that it does not say are left for the topic of the rules.
- A2. Else a name that code made of the old text is kept only if the new text says it.
- A3. A name that a person chose stays, but for A1.

Attacked in tests/attacks/test_hostile_names.py.
"""

from __future__ import annotations

import re
from typing import Final

from muniment.agent.filing import read
from muniment.content.entry import parse
from muniment.content.provenance import names
from muniment.content.titles import anonymous, slug, title_of
from muniment.kernel.change import FileChange
from muniment.kernel.names import RelPath, joined
from muniment.kernel.path import FILE_SUFFIX

_NUMBER: Final = re.compile(r"(?:-[0-9]{1,3}|-[0-9a-f]{8})?")
_BETWEEN_WORDS: Final = re.compile(r"[-_ .]+")


def name_of_replaced(change: FileChange, is_trusted_more: bool) -> RelPath:  # noqa: FBT001  see `NewName`
    """Return where an entry goes whose text is replaced (A1 to A3).

    Args:
        change: with the text before and after.
        is_trusted_more: whether the new text is trusted more than the old one.
    """
    old, new = _text(change.before), _text(change.after)
    *folders, name = change.path.rel.split("/")
    stem = name.removesuffix(FILE_SUFFIX)
    if not new or old == new:
        return change.path.rel
    if is_trusted_more:
        topic = read(new).topic
        is_said = all(each == topic or _says(new, each) for each in folders)
        folder = "/".join(folders) if is_said else topic
        if is_said and _says(new, stem):
            return change.path.rel
        return RelPath(joined(folder, _stem(new) + FILE_SUFFIX))
    if _is_made_of(old, stem) and not _says(new, stem):
        return RelPath(joined("/".join(folders), _stem(new) + FILE_SUFFIX))
    return change.path.rel


def _text(data: bytes | None) -> str:
    return parse(data or b"").body.strip()


def _stem(text: str) -> str:
    return slug(title_of(text), text)


def _is_made_of(text: str, stem: str) -> bool:
    """Whether code made a name of a text, with a number or digest where it was taken."""
    return any(
        stem.startswith(made) and _NUMBER.fullmatch(stem[len(made) :]) is not None
        for made in (_stem(text), anonymous(text))
    )


def _says(text: str, stem: str) -> bool:
    """Whether a text says the words of a name, or code would make the name of it."""
    return _is_made_of(text, stem) or names(_BETWEEN_WORDS.sub(" ", stem), text)
