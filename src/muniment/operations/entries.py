"""Access to entries by path, for programs that read and change entries themselves, without an agent.

D1 The policy judges a path before anything is opened: as written and, if links are resolved, as resolved.
   Every open is confined to its root.
D2 A caller passes the body of an entry. Code owns the front matter: it is retained, completed and stamped at
   every change, and a text of a caller never becomes part of it.
D3 Each change is one atomic commit. `history` reports it and `undo` reverses it.
D4 New text has at most the trust that the caller passes. Text that is retained in part, or only moved, has at
   most its old trust. A change that replaces text with higher trust waits for the owner's review.
D5 Withheld and expired entries are not returned, and not listed to a reader below the owner's trust.

Use `Entries.write` for text of another author, such as a model: it makes a tool call in a worker, and commits
the sandbox. Use `Entries.commit_changes` for changes by code: removals, moves, or several entries at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

from muniment.content.admission import NAME_GATE
from muniment.content.entry import Entry, parse
from muniment.content.expiry import is_expired
from muniment.content.frontmatter import BYTE_ORDER_MARK, find_line_break, starts_front_matter
from muniment.content.gates import decode, encode
from muniment.content.secrets import redact_secrets
from muniment.errors import PathEscape, Refusal, Refused, RememberRefused, StoreConflict
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import FileChange, digest
from muniment.kernel.decide import PolicyEvaluator
from muniment.kernel.names import MAX_FILE_BYTES, Digest, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath
from muniment.kernel.root import Kind
from muniment.names import Symlinks
from muniment.operations.job import (
    EDIT,
    choose_task_id,
    commit_edit,
    create_commit_options,
    create_identity_stamp,
    create_run,
)
from muniment.operations.job_context import JobContext
from muniment.operations.visibility import Reader, Visibility
from muniment.policy.grammar import NO_LINKS, check_creatable
from muniment.sandbox.sandbox import Sandbox
from muniment.sandbox.tools.calls import Outcome
from muniment.sandbox.tools.links import read_links
from muniment.sandbox.tools.workbench import PathResolver
from muniment.store.audit import timestamp
from muniment.store.catalog import CatalogEntry
from muniment.store.commit import CommitResult, Stamp
from muniment.store.index import is_index_path
from muniment.store.ledger import Run
from muniment.store.trust import TrustDecision, TrustRule, stamp_entry

NO_TRUST: Final[Mapping[CanonicalPath, Trust]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry as it was read from its file.

    Attributes:
        path: the path of the file.
        data: the bytes of the file.
        trust: the trust of these bytes.
        entry: the parsed file.
        written_at: when the file was written.
    """

    path: CanonicalPath
    data: bytes
    trust: Trust
    entry: Entry
    written_at: datetime

    @property
    def digest(self) -> Digest:
        """Return the digest of the file; a change of the entry uses it as a precondition."""
        return digest(self.data)

    def with_body(self, body: str) -> str:
        """Return the text of the file with its body replaced by `body`; the front matter stays."""
        if self.entry.front is None:
            return build_file_text(body)
        return self.entry.text[: self.entry.front.body] + body


def build_file_text(body: str, keys: Mapping[str, str] | None = None) -> str:
    """Return the text of a file with exactly this body, and with front matter that contains `keys`.

    Without keys the file has no front matter, unless the body could be mistaken for front matter.
    """
    if not keys and not starts_front_matter(body) and not body.startswith(BYTE_ORDER_MARK):
        return body
    end = find_line_break(body)
    lines = [f"{key}: {value}" for key, value in (keys or {}).items()]
    return "".join(f"{line}{end}" for line in ("---", *lines, "---")) + body


class Entries:
    """The entries of a memory, by path. Several threads may share one object.

    Args:
        context: the policy, roots and state; the caller closes them.
        decided_by: the author of the changes, as the ledger records it.
    """

    def __init__(self, context: JobContext, decided_by: str = "agent") -> None:
        self._context, self._decided_by = context, decided_by
        self._judge = PolicyEvaluator(context.policy)

    # -- reading

    def resolve(self, unsafe_path: str, *verbs: Verb) -> tuple[CanonicalPath, Kind | None]:
        """Return the canonical path for `unsafe_path`, and the kind of its file (None: the file is missing).

        The policy judges the path as written and, if links are resolved, as resolved.

        Args:
            unsafe_path: the path of a scope, folder or file, without `/memories/`.
            verbs: the policy must grant one of these verbs, and the path must be a file or missing. Without
                verbs, every path is accepted that the policy does not hide.

        Raises:
            PathEscape, BadName, Refused, NotAFile: the path is invalid, denied or not a file.
            ManagedMemoryUnavailable: a root cannot be used.
        """
        for root in self._context.roots.values():
            root.verify()
        reach = self._create_reach
        location = reach.resolve_file(unsafe_path, *verbs) if verbs else reach.resolve_any(unsafe_path)
        found = self._context.roots[location.path.scope].root.examine(location.path)
        return location.path, None if found is None else found.kind

    def read(self, path: CanonicalPath) -> StoredEntry:
        """Return the entry at a path.

        Raises:
            Refused: the policy denies it, the entry is withheld or has expired, or the path is an index.
            PathEscape, ToolError: the file cannot be read.

        Cost: opening and reading the file, one query of the ledger, and the gates if this memory did not
            write it.
        """
        self._judge.require(Verb.READ, path)
        if is_index_path(path.rel):  # An index quotes the authors of the entries that it lists.
            message = f"{path.text} is generated from the entries; read them instead"
            raise Refused(message, rule="index", layer="content")
        with self._context.roots[path.scope].root.open_file(path) as file:
            data, modified_at = file.read_whole(MAX_FILE_BYTES), os.fstat(file.fd).st_mtime
        assessment = self._context.assess(path, data)
        if assessment.held is not None:
            message = (
                f"the text of {path.text} is withheld from models ({assessment.held}); its owner can see it"
            )
            raise Refused(message, rule=assessment.held, layer="content")
        if assessment.expires is not None and is_expired(assessment.expires, timestamp()):
            message = f"{path.text} expired: it was valid until {assessment.expires[:10]}"
            raise Refused(message, rule="expires", layer="retention")
        return StoredEntry(
            path, data, assessment.trust, parse(decode(data)), datetime.fromtimestamp(modified_at, UTC)
        )

    def read_digest(self, path: CanonicalPath) -> Digest:
        """Return the digest of the file at a path. Raises as `JobContext.read_file`."""
        return digest(self._context.read_file(path))

    def list_visible(self, scope: Scope, trust: Trust) -> Iterator[tuple[CanonicalPath, CatalogEntry]]:
        """Yield the entries of a scope that a reader of this trust may see.

        Entries whose name is withheld are omitted.

        Raises:
            ManagedMemoryUnavailable, PathEscape: the root cannot be used, or was moved or replaced.

        Cost: a check of every file of the scope.
        """
        self._context.roots[scope].verify()
        visibility = Visibility(self._context, Reader(trust))
        for row in visibility.load_view(scope).entries():
            path = CanonicalPath(scope, row.rel)
            is_visible = (
                row.held != NAME_GATE if trust is Trust.OWNER else visibility.is_recallable(path, row)
            )
            if is_visible and self._judge.allows(Verb.LIST, path):
                yield path, row

    # -- changing

    def write(
        self, path: CanonicalPath, text: str, before: StoredEntry | None, trust: Trust, deadline: Deadline
    ) -> CommitResult:
        """Write one file by a `write_file` call in a worker, and commit it.

        Args:
            path: the path as `resolve` returns it, without links.
            text: the text of the whole file, from `build_file_text` or `StoredEntry.with_body`.
            before: the entry that the text replaces; None: the file must not exist.
            trust: the trust of the new text.
            deadline: the time limit of the call.

        Raises:
            RememberRefused: a gate, a quota or the policy denies the text; a model may see the message.
            StoreConflict: the file exists although `before` is None, or it is no longer `before`.
            MunimentError: as `Sandbox.commit`.

        Cost: the start of a worker, and a commit.
        """
        context = self._context
        with Sandbox.for_run(
            context.policy,
            context.roots,
            context.state,
            in_process=context.in_process,
            symlinks=context.symlinks,
            deadline=deadline,
            injected={} if before is None else {path: before.digest},
        ) as box:
            _raise_unless_allowed(box.call("write_file", {"path": path.text, "content": text}), path)
            rule = _create_trust_rule(trust, {} if before is None else {path: before.trust})
            return box.commit(self._create_run(trust), trust=rule, stamp=stamp_entry)

    def commit_changes(
        self,
        changes: Sequence[FileChange],
        trust: Trust,
        deadline: Deadline,
        *,
        retained_trust: Mapping[CanonicalPath, Trust] = NO_TRUST,
        complete: Stamp = stamp_entry,
    ) -> CommitResult:
        """Commit changes that a program, not a model, makes to some files.

        Args:
            changes: the changes, each with the digest of the file that it changes. New texts are as for
                `write`.
            trust: the trust of the caller, and of new text.
            deadline: the time limit of the call.
            retained_trust: the trust of old text that stays in a file, by path.
            complete: returns the final bytes of a new file.

        Raises:
            RememberRefused: a gate, a quota or the policy denies a change.
            MunimentError: as `store.commit`.
        """
        try:
            for each in changes:
                if each.base is None:
                    check_creatable(each.path)
        except Refusal as error:
            raise RememberRefused(f"the change was denied: {error}") from error
        options = create_commit_options(
            self._context, self._create_run(trust), deadline, _create_trust_rule(trust, retained_trust)
        )
        return commit_edit(changes, replace(options, stamp=complete))

    def move(
        self, moved: Mapping[CanonicalPath, StoredEntry], trust: Trust, deadline: Deadline
    ) -> CommitResult:
        """Move entries to other paths; each entry keeps its id.

        Args:
            moved: the entries, each by its new path.
            trust: the trust of the caller.
            deadline: the time limit of the call.

        Raises:
            RememberRefused, MunimentError: as `commit_changes`.
        """
        changes = [
            change
            for path, stored in moved.items()
            for change in (FileChange(stored.path, stored.digest, None), FileChange(path, None, stored.data))
        ]
        retained_trust = {path: stored.trust for path, stored in moved.items()}
        complete = create_identity_stamp({path: stored.data for path, stored in moved.items()})
        return self.commit_changes(changes, trust, deadline, retained_trust=retained_trust, complete=complete)

    def encode_text(self, text: str) -> bytes:
        """Return a text as bytes for `commit_changes`.

        If the policy redacts secrets, possible secrets in the text are redacted.

        Raises:
            ToolError: the text contains a lone surrogate.
        """
        return encode(redact_secrets(text) if self._context.policy.content.secrets == "redact" else text)

    def _create_run(self, trust: Trust) -> Run:
        return create_run(self._context, EDIT, choose_task_id(EDIT, None), trust, self._decided_by)

    @property
    def _create_reach(self) -> PathResolver:
        """Return a resolver for paths, with the current links of the roots if links are resolved."""
        roots, are_resolved = self._context.roots, self._context.symlinks is Symlinks.BENEATH
        links = {scope: read_links(each.root) for scope, each in roots.items()} if are_resolved else NO_LINKS
        return PathResolver(self._judge, tuple(roots), links)


def _create_trust_rule(trust: Trust, retained_trust: Mapping[CanonicalPath, Trust]) -> TrustRule:
    """Return the trust rule for a caller of this trust; retained text keeps at most its old trust."""
    return lambda draft, _held: TrustDecision(
        trust.cap(*filter(None, [retained_trust.get(draft.path)])), author_trust=trust
    )


def _raise_unless_allowed(outcome: Outcome, path: CanonicalPath) -> None:
    """Raise the error of a tool call unless the call was allowed."""
    if outcome.verdict == "allow":
        return
    if outcome.via is not None:
        raise PathEscape(outcome.via, path.text)
    if outcome.code == "not_read":
        raise StoreConflict((path.text,))
    raise RememberRefused(outcome.text)
