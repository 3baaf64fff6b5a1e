"""The identifiers of roots and entries in the ledger, the catalog and recall; internal to the process."""

from __future__ import annotations

from typing import NamedTuple, NewType

from muniment.kernel.names import Digest, RelPath

RootKey = NewType("RootKey", str)
"""The identifier of a root in the ledger and the catalog: 32 random hexadecimal digits."""


class EntryKey(NamedTuple):
    """A version of an entry: its root, its path and the digest of its text."""

    root: RootKey
    rel: RelPath
    digest: Digest
