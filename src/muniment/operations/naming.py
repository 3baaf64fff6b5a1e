"""Choose the name of an entry whose text is replaced.

A file name is text too. A person or an agent chose it, or code generated it from the text of the entry. If
the text is replaced, a name that repeats the old text is replaced too.

- A1. If the new text has more trust than the old one, the path retains only words that the new text contains.
  If the file name has other words, code generates a new one. If a folder has other words, the topic that the
  rules find in the new text replaces all folders.
- A2. Otherwise, if the old text contained the words of a name that no person chose, or code generated the
  name from it, the name stays only if the new text contains the words too, or gives the same name. A number
  at its end that only distinguishes it from another name is ignored.
- A3. A name that a person chose stays, except in case A1. Code knows this from a mark in the front matter
  (`content.titles.build_name_mark`). Without a mark, a name is chosen unless Muniment wrote the entry, and
  code would generate the name from the old text.

Attacked in tests/attacks/test_hostile_names.py and tests/units/operations/test_renames.py.
"""

from __future__ import annotations

import re
from typing import Final

from muniment.agent.filing import read_cues
from muniment.content.entry import parse
from muniment.content.provenance import is_name_in_fact
from muniment.content.titles import build_slug, derive_title, is_generated_name, is_name_unchosen
from muniment.content.words import split_words
from muniment.kernel.change import FileChange
from muniment.kernel.names import RelPath, join_path
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath
from muniment.store.handles import read_entry_id

_ENDING: Final = re.compile(r"(?:-[0-9]{1,4}|-[0-9a-f]{8})\Z")
_WORD_SEPARATORS: Final = re.compile(r"[-_ .]+")


def choose_path(change: FileChange, is_trusted_more: bool) -> RelPath:  # noqa: FBT001  see `ChooseName`
    """Return the path of an entry after its text is replaced (rules A1 to A3 in the module docstring).

    Args:
        change: the change, with the text before and after.
        is_trusted_more: whether the new text has more trust than the old one.
    """
    old, new = _read_body(change.before), _read_body(change.after)
    *folders, name = change.path.rel.split("/")
    stem = name.removesuffix(FILE_SUFFIX)
    if not new or old == new:
        return change.path.rel
    if is_trusted_more:
        topic = read_cues(new).topic
        are_folders_in_text = all(each == topic or _contains_name(new, each) for each in folders)
        folder = "/".join(folders) if are_folders_in_text else topic
        if are_folders_in_text and _contains_name(new, stem):
            return change.path.rel
        return RelPath(join_path(folder, _generate_stem(new) + FILE_SUFFIX))
    if not _is_chosen(change, old, stem) and _is_outdated(old, new, stem):
        return RelPath(join_path("/".join(folders), _generate_stem(new) + FILE_SUFFIX))
    return change.path.rel


def is_name_generated(data: bytes, path: CanonicalPath) -> bool:
    """Return whether code would generate the name of an entry from its text."""
    return is_generated_name(_read_body(data), path.name.removesuffix(FILE_SUFFIX))


def _read_body(data: bytes | None) -> str:
    return parse(data or b"").body.strip()


def _generate_stem(text: str) -> str:
    return build_slug(derive_title(text), text)


def _is_chosen(change: FileChange, old: str, stem: str) -> bool:
    """Return whether a person chose the name of the entry that a change replaces (rule A3)."""
    entry = parse(change.before or b"")
    return not (is_name_unchosen(entry, stem) or (read_entry_id(entry) and is_generated_name(old, stem)))


def _is_outdated(old: str, new: str, stem: str) -> bool:
    """Return whether the old text contained a name or a word of it, and the new text does not (rule A2)."""
    if is_generated_name(new, stem):
        return False
    for name in stem, _ENDING.sub("", stem):
        words = _WORD_SEPARATORS.sub(" ", name)
        if is_name_in_fact(words, old):
            return not is_name_in_fact(words, new)
    lost_words = set(split_words(old)).difference(split_words(new))
    return is_generated_name(old, stem) or not lost_words.isdisjoint(split_words(stem))


def _contains_name(text: str, stem: str) -> bool:
    """Return whether a text contains all words of a name, or code would generate the name from the text."""
    return is_generated_name(text, stem) or is_name_in_fact(_WORD_SEPARATORS.sub(" ", stem), text)
