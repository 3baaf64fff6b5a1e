"""Provenance and complete front matter for an entry that is about to be committed.

For `stamp` clock and randomness come in as values, so that the same change stamps to the same bytes. What a
proposal says of its own provenance is thrown away; on a change, id and time of creation are taken from the
file that is replaced, if they have the right form, so that an entry keeps its identity. All of it is a
display copy: the ledger is what counts.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from muniment.content.entry import TYPES, complete, parse, titled, with_provenance
from muniment.content.gates import decode, encode
from muniment.names import Trust
from muniment.policy.grammar import CanonicalPath

ULID_RANDOM_BYTES: Final = 10
"""Bytes of randomness in a ULID: 80 bits."""

_MAX_MILLISECONDS: Final = 2**48 - 1
_CROCKFORD: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ULID: Final = re.compile(f"[0-7][{_CROCKFORD}]{{25}}")
_TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a change comes from.

    Attributes:
        new_id: the id that the entry gets if it has none; see `ulid`.
        now: time of the change, with a time zone.
        task: id of the task.
        trust: of the fact.
        decided_by: what chose the place and words, such as `rules` or the model's name.
        policy: name and short digest, such as `strict@a1f4e0db`.
    """

    new_id: str
    now: datetime
    task: str
    trust: Trust
    decided_by: str
    policy: str


def ulid(milliseconds: int, randomness: bytes) -> str:
    """A ULID: 26 characters that sort by time.

    Args:
        milliseconds: since the epoch; 0 to 2**48 - 1.
        randomness: `ULID_RANDOM_BYTES` bytes, each time fresh from the system.

    Raises:
        ValueError: an argument is out of range.

    Source: github.com/ulid/spec, "Binary Layout" and "Encoding".
    """
    if not 0 <= milliseconds <= _MAX_MILLISECONDS or len(randomness) != ULID_RANDOM_BYTES:
        raise ValueError(f"a ULID takes 48 bits of time and {ULID_RANDOM_BYTES} bytes of randomness")
    number = int.from_bytes(milliseconds.to_bytes(6, "big") + randomness, "big")
    return "".join(_CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))


def new_ulid() -> str:
    """A ULID of now."""
    return ulid(time.time_ns() // 1_000_000, secrets.token_bytes(ULID_RANDOM_BYTES))


def stamp(data: bytes, base: bytes | None, path: CanonicalPath, provenance: Provenance) -> bytes:
    """The bytes to commit for a proposed entry: front matter completed, provenance set.

    Args:
        data: the proposal; only its front matter is added to.
        base: the file that it replaces, or None for a new one.
        path: where it goes; gives the name of last resort, and the type where the scope is named like one.
        provenance: of this change.

    Raises:
        NotText: `data` is not UTF-8 text. (A base that is not is treated as one without provenance.)
        TooLarge: the front matter has no room left.
    """
    text = decode(data)
    entry = parse(text)
    titles = titled(entry, path.rel)
    scope_type = path.scope if path.scope in TYPES else "reference"
    text = complete(text, name=titles.name, description=titles.description, type=scope_type)
    now = provenance.now.astimezone(UTC).strftime(_TIME_FORMAT)
    kept = parse(base).muniment if base is not None else None
    identity, created = _identity(kept or {})
    return encode(
        with_provenance(
            text,
            {
                "id": identity or provenance.new_id,
                "created": created or now,
                "updated": now,
                "task": provenance.task,
                "trust": str(provenance.trust),
                "decided_by": provenance.decided_by,
                "policy": provenance.policy,
            },
        )
    )


def _identity(muniment: Mapping[str, object]) -> tuple[str | None, str | None]:
    """Id and time of creation as a provenance line has them; None for what has not the right form."""
    identity, created = muniment.get("id"), muniment.get("created")
    return (
        identity if isinstance(identity, str) and _ULID.fullmatch(identity) else None,
        created if isinstance(created, str) and _is_time(created) else None,
    )


def _is_time(text: str) -> bool:
    if _TIME.fullmatch(text) is None:
        return False
    try:
        datetime.strptime(text, _TIME_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return False
    return True
