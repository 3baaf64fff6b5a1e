"""Which bytes may stand in the memory: the content gates together, in the order in which they are told.

- `check_entry`: what this program is about to write. Encoding, invisible characters, secrets, active markup;
  the model is told the gate and the rule, never the value. Run in the worker, and again in the broker.
- `held_for`: what somebody else wrote, before its text, name or description is shown to anyone.

Holds:

- M1. Every gate also sees what the escapes of front matter spell: readers of YAML differ, and ours knows only
  a part of it. So every escape counts, whatever key or value it stands in, except before the first double
  quote, where nothing can be one.
- M2. Secrets are refused whatever `content.secrets` says: under `redact` the worker takes them out before,
  and what is left here could not be taken out.
- M3. `held_for` answers for any bytes, and by every gate that there is: a policy that lets a gate rest speaks
  for what its own runs write, not for files of unknown origin.

Attacked in tests/content/test_admission.py.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from muniment.content.frontmatter import spelled
from muniment.content.gates import GATES, check_text, decode, encode
from muniment.content.instructions import addressed_to_agent
from muniment.content.markup import ACTIVE_MARKUP, active_markup
from muniment.content.secrets import find_secret
from muniment.errors import ContentRejected
from muniment.names import Trust
from muniment.policy.decide import Content

SECRETS: Final = "secrets"
INSTRUCTIONS: Final = "instructions"
"""Gates that have a key of their own in a policy."""


def check_entry(data: bytes, rel: str, content: Content) -> None:
    """Pass a whole file through the gates that `content` turns on (M1, M2).

    Args:
        data: the file, to its last byte.
        rel: its path inside its scope.
        content: of the effective policy. `instructions` is none of this function's business: such text may
            be written, and waits for review.

    Raises:
        NotText: the bytes are not UTF-8 or hold NUL, or an escape spells half a character.
        ContentRejected: a gate refuses the file; `rule` is its name, the message names line and rule.

    Cost: about 40 µs for an ordinary entry.
    """
    text = decode(data)
    other = spelled(text)
    _check_characters(text, other, content.reject)
    if other is not None:
        encode(other.replace("\0", ""))  # NUL is for the gates to judge; half a character is for none of them
    found = find_secret(data, rel)
    if found is not None:
        where = f"line {found.line} holds" if found.line else "the path holds"
        raise ContentRejected(f"{where} what looks like a secret ({found.rule}); leave it out", rule=SECRETS)
    if ACTIVE_MARKUP in content.reject and (line := _active(text, other)) is not None:
        what = "markup that runs or loads something when it is shown; write it as code or leave it out"
        raise ContentRejected(f"line {line} holds {what}", rule=ACTIVE_MARKUP)


def held_for(data: bytes, rel: str, trust: Trust) -> str | None:
    """The gate for which a file that Muniment did not write is held back, or None (M1, M3).

    Args:
        data: the file. Bytes that are not UTF-8 are somebody else's business, and hide nothing here.
        rel: its path inside its scope.
        trust: of files in its scope that Muniment did not write.

    Returns:
        One of `muniment.content.gates.GATES`, `marks`, `secrets`, `active-markup`, `instructions`.

    Cost: about 60 µs for a KiB of English, 120 µs where letters have accents; it grows with the file.
    """
    text = data.decode("utf-8", "replace")
    other = spelled(text)
    try:
        _check_characters(text, other, GATES)
    except ContentRejected as rejected:
        return rejected.rule
    if find_secret(data, rel) is not None:
        return SECRETS
    if _active(text, other) is not None:
        return ACTIVE_MARKUP
    for view in (text, other):
        if view is not None and addressed_to_agent(view, trust) is not None:
            return INSTRUCTIONS
    return None


def _check_characters(text: str, other: str | None, reject: Collection[str]) -> None:
    gates = [gate for gate in reject if gate in GATES]
    check_text(text, gates)
    if other is not None:
        check_text(other, gates)


def _active(text: str, other: str | None) -> int | None:
    line = active_markup(text)
    return line if line is not None or other is None else active_markup(other)
