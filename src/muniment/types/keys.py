"""What the ledger, the catalog and recall call a root and an entry; none of it leaves the process."""

from __future__ import annotations

from typing import NamedTuple, NewType

from muniment.kernel.names import Digest, RelPath

RootKey = NewType("RootKey", str)
"""What the ledger and the catalog call a root: 32 random hexadecimal digits."""


class EntryKey(NamedTuple):
    """An entry as it was: which, and what it said."""

    root: RootKey
    rel: RelPath
    digest: Digest
