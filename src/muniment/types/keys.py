"""Identifiers of roots and entries, as the ledger, the catalog and recall use them inside the process."""

from __future__ import annotations

from typing import NamedTuple, NewType

from muniment.kernel.names import Digest, RelPath

RootKey = NewType("RootKey", str)
"""The identifier of a root in the ledger and the catalog: 32 random hexadecimal digits."""


class EntryKey(NamedTuple):
    """The identifier of one version of an entry: its root, its path in the root, the digest of its text."""

    root: RootKey
    rel: RelPath
    digest: Digest
