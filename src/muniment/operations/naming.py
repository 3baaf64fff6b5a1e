"""Choose the name of an entry whose text is replaced.

A file name is text too. A person or an agent chose it, or code generated it from the text of the entry. If
the text is replaced, a name that repeats the old text is replaced too.

- A1. If the new text has more trust than the old one, the path retains only words that the new text contains.
  Code generates the file name. If a folder is not in the new text, the topic of the rules replaces the
  folders.
- A2. Otherwise a name that code generated from the old text stays only if the new text contains it.
- A3. A name that a person chose stays, except in case A1.

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
    """Return the path of an entry after its text is replaced (A1 to A3).

    Args:
        change: the change, with the text before and after.
        is_trusted_more: whether the new text has more trust than the old one.
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
    """Return whether code generated a name from a text, also with a number or digest at the end."""
    return any(
        stem.startswith(made) and _NUMBER.fullmatch(stem[len(made) :]) is not None
        for made in (_stem(text), anonymous(text))
    )


def _says(text: str, stem: str) -> bool:
    """Return whether a text contains the words of a name, or code would generate the name from it."""
    return _is_made_of(text, stem) or names(_BETWEEN_WORDS.sub(" ", stem), text)
