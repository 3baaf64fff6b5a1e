"""Entries by path, for programs that read and change them directly: no agent chooses the path of a text.

D1 The policy judges a path as written and, if links are resolved, as resolved, before anything is opened.
   Every open is confined to its root.
D2 A text is the body of its entry. Code owns the front matter: it is retained, completed and stamped at every
   change, and a text never becomes part of it.
D3 Each change is one atomic commit. `history` reports it and `undo` reverses it.
D4 New bytes have at most the trust that the caller passes. Text that is retained in part, or only moved, has
   at most its old trust. A replacement of a text with higher trust waits for the owner's review, as
   everywhere.
D5 Withheld and expired entries are not returned, and not listed to a reader below the owner's trust.

A text of another author uses `write`: a tool call in a worker, and the commit of its sandbox. `change` is for
operations of code: removals, moves, several entries at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

from muniment.content.admission import NAME
from muniment.content.entry import Entry, parse
from muniment.content.expiry import is_expired
from muniment.content.frontmatter import BYTE_ORDER_MARK, line_break, opens
from muniment.content.gates import decode, encode
from muniment.content.secrets import redacted
from muniment.errors import PathEscape, Refusal, Refused, RememberRefused, StoreConflict
from muniment.kernel.cancel import Patience
from muniment.kernel.change import FileChange, digest
from muniment.kernel.decide import Judge
from muniment.kernel.names import MAX_FILE_BYTES, Digest, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath
from muniment.kernel.root import Kind
from muniment.names import Symlinks
from muniment.operations.job import EDIT, commit_edit, id_of_task, run_of, stamped_like, terms_of
from muniment.operations.place import Place
from muniment.operations.visibility import Reader, Visibility
from muniment.policy.grammar import NO_LINKS, check_creatable
from muniment.sandbox.sandbox import Sandbox
from muniment.sandbox.tools.calls import Outcome
from muniment.sandbox.tools.links import read_links
from muniment.sandbox.tools.workbench import Reach
from muniment.store.audit import timestamp
from muniment.store.catalog import CatalogEntry
from muniment.store.commit import Commit, Stamp
from muniment.store.index import is_index_path
from muniment.store.ledger import Run
from muniment.store.trust import Ruling, TrustRule, stamp

NO_TRUST: Final[Mapping[CanonicalPath, Trust]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class HeldEntry:
    """An entry that was read.

    Attributes:
        data: the file.
        trust: of these bytes.
        entry: the parsed file.
        at: when the file was written.
    """

    path: CanonicalPath
    data: bytes
    trust: Trust
    entry: Entry
    at: datetime

    @property
    def digest(self) -> Digest:
        """Return the digest of the file, as a precondition."""
        return digest(self.data)

    def with_body(self, body: str) -> str:
        """Return the file's text with another body (D2)."""
        if self.entry.front is None:
            return with_front(body)
        return self.entry.text[: self.entry.front.body] + body


def with_front(body: str, keys: Mapping[str, str] | None = None) -> str:
    """Return the text of a file with exactly this body, and front matter with `keys` (D2)."""
    if not keys and not opens(body) and not body.startswith(BYTE_ORDER_MARK):
        return body
    end = line_break(body)
    lines = [f"{key}: {value}" for key, value in (keys or {}).items()]
    return "".join(f"{line}{end}" for line in ("---", *lines, "---")) + body


class Entries:
    """The entries of a memory, by path. Threads may share one.

    Args:
        place: policy, roots and state; the caller closes it.
        decided_by: the author of the changes in the ledger.
    """

    def __init__(self, place: Place, decided_by: str = "agent") -> None:
        self._place, self._decided_by = place, decided_by
        self._judge = Judge(place.policy)

    # -- reading

    def at(self, unsafe_path: str, *verbs: Verb) -> tuple[CanonicalPath, Kind | None]:
        """Resolve a path, and return it with the kind of its file, or None if it does not exist (D1).

        Args:
            unsafe_path: of a scope, folder or file, without `/memories/`.
            verbs: the policy must grant one of them, and the path must be a file or missing; empty: any path
                that the policy does not hide.

        Raises:
            PathEscape, BadName, Refused, NotAFile: the path is not valid for this request.
            ManagedMemoryUnavailable: a root cannot be used.
        """
        for root in self._place.roots.values():
            root.verify()
        reach = self._reach
        reached = reach.file(unsafe_path, *verbs) if verbs else reach.file_or_directory(unsafe_path)
        found = self._place.roots[reached.path.scope].root.examine(reached.path)
        return reached.path, None if found is None else found.kind

    def read(self, path: CanonicalPath) -> HeldEntry:
        """Return the entry at a path.

        Raises:
            Refused: the policy denies it, the entry is withheld or has expired (D5), or it is an index.
            PathEscape, ToolError: it cannot be read.

        Cost: an open, a read, a query of the ledger, and the gates if this memory did not write it.
        """
        self._judge.require(Verb.READ, path)
        if is_index_path(path.rel):  # An index quotes the authors of the entries that it lists.
            told = f"{path.text} is generated from the entries; read them instead"
            raise Refused(told, rule="index", layer="content")
        with self._place.roots[path.scope].root.open_file(path) as file:
            data, written = file.read_whole(MAX_FILE_BYTES), os.fstat(file.fd).st_mtime
        found = self._place.assessed(path, data)
        if found.held is not None:
            told = f"the text of {path.text} is withheld from models ({found.held}); its owner can see it"
            raise Refused(told, rule=found.held, layer="content")
        if found.expires is not None and is_expired(found.expires, timestamp()):
            told = f"{path.text} expired: it was valid until {found.expires[:10]}"
            raise Refused(told, rule="expires", layer="retention")
        return HeldEntry(path, data, found.trust, parse(decode(data)), datetime.fromtimestamp(written, UTC))

    def digest_of(self, path: CanonicalPath) -> Digest:
        """Return the digest of the file at a path, without its text. Raises as a read of it."""
        return digest(self._place.read(path))

    def listed(self, scope: Scope, trust: Trust) -> Iterator[tuple[CanonicalPath, CatalogEntry]]:
        """Return the entries of a scope that a reader of some trust may see.

        Entries whose name is withheld are omitted.

        Raises:
            ManagedMemoryUnavailable, PathEscape: the root cannot be used, or was moved or replaced.

        Cost: a check of every file.
        """
        self._place.roots[scope].verify()
        visibility = Visibility(self._place, Reader(trust))
        for row in visibility.view(scope).entries():
            path = CanonicalPath(scope, row.rel)
            is_shown = row.held != NAME if trust is Trust.OWNER else visibility.is_recallable(path, row)
            if is_shown and self._judge.allows(Verb.LIST, path):
                yield path, row

    # -- changing

    def write(
        self, path: CanonicalPath, text: str, before: HeldEntry | None, trust: Trust, patience: Patience
    ) -> Commit:
        """Write one file, with `write_file` in a worker, and commit it.

        Args:
            path: without links, as `at` returns it.
            text: the whole file, see `with_front` and `HeldEntry.with_body`.
            before: the entry that it replaces; None: the file must not exist.
            trust: of the new text.
            patience: when the call ends.

        Raises:
            RememberRefused: gates, quotas or the policy deny it; the message is safe for a model.
            StoreConflict: the file exists, or is not `before`.
            MunimentError: as `Sandbox.commit`.

        Cost: the start of a worker, and a commit.
        """
        place = self._place
        with Sandbox.for_run(
            place.policy,
            place.roots,
            place.state,
            in_process=place.in_process,
            symlinks=place.symlinks,
            patience=patience,
            shown={} if before is None else {path: before.digest},
        ) as box:
            _require(box.call("write_file", {"path": path.text, "content": text}), path)
            rule = _ruling(trust, {} if before is None else {path: before.trust})
            return box.commit(self._run(trust), trust=rule, stamp=stamp)

    def change(
        self,
        changes: Sequence[FileChange],
        trust: Trust,
        patience: Patience,
        *,
        kept: Mapping[CanonicalPath, Trust] = NO_TRUST,
        stamped: Stamp = stamp,
    ) -> Commit:
        """Commit changes that code makes to some files.

        Args:
            changes: each with the digest of the file that it changes; texts as of `write`.
            trust: of the caller, and of new text.
            patience: when the call ends.
            kept: the trust of text that stays in a file, by path.
            stamped: completes the new bytes.

        Raises:
            RememberRefused: as `write`.
            MunimentError: as `store.commit`.
        """
        try:
            for each in changes:
                if each.base is None:
                    check_creatable(each.path)
        except Refusal as error:
            raise RememberRefused(f"the change was denied: {error}") from error
        terms = terms_of(self._place, self._run(trust), patience, _ruling(trust, kept))
        return commit_edit(changes, replace(terms, stamp=stamped))

    def move(self, moved: Mapping[CanonicalPath, HeldEntry], trust: Trust, patience: Patience) -> Commit:
        """Move entries to other paths, by the new path of each; they keep their ids. Raises as `change`."""
        changes = [
            change
            for path, held in moved.items()
            for change in (FileChange(held.path, held.digest, None), FileChange(path, None, held.data))
        ]
        kept = {path: held.trust for path, held in moved.items()}
        stamped = stamped_like({path: held.data for path, held in moved.items()})
        return self.change(changes, trust, patience, kept=kept, stamped=stamped)

    def encoded(self, text: str) -> bytes:
        """Return the bytes of a text for `change`.

        If the policy redacts secrets, text that looks secret is removed.

        Raises:
            ToolError: it contains a lone surrogate.
        """
        return encode(redacted(text) if self._place.policy.content.secrets == "redact" else text)

    def _run(self, trust: Trust) -> Run:
        return run_of(self._place, EDIT, id_of_task(EDIT, None), trust, self._decided_by)

    @property
    def _reach(self) -> Reach:
        """Return the current reach, by the current links if they are resolved."""
        roots, are_resolved = self._place.roots, self._place.symlinks is Symlinks.BENEATH
        links = {scope: read_links(each.root) for scope, each in roots.items()} if are_resolved else NO_LINKS
        return Reach(self._judge, tuple(roots), links)


def _ruling(trust: Trust, kept: Mapping[CanonicalPath, Trust]) -> TrustRule:
    """Return the rule of D4."""
    return lambda draft, _held: Ruling(trust.capped(*filter(None, [kept.get(draft.path)])), by=trust)


def _require(outcome: Outcome, path: CanonicalPath) -> None:
    """Raise the error of a call that was not allowed."""
    if outcome.verdict == "allow":
        return
    if outcome.via is not None:
        raise PathEscape(outcome.via, path.text)
    if outcome.code == "not_read":
        raise StoreConflict((path.text,))
    raise RememberRefused(outcome.text)
