"""Provide the memory as a store of LangGraph: `muniment[langgraph]`.

    from muniment.integrations.langgraph import MunimentStore

    with muniment.open(".") as memory:
        graph = builder.compile(store=MunimentStore(memory, scope="user"))

L1 Each item is an entry that recall finds, in a folder of its scope: `("memories", "ann")` and `k1` are
   `user/memories.ann/k1.md`. `values.py` defines the conversion of names and values.
L2 A batch is one commit with all of its puts or none; `history` lists it and `undo` reverses it. Reads of a
   batch see the state before it. When `put` returns, the item is stored; a rejected put raises.
L3 A stored value has at most the trust that the caller gives; only the owner replaces the owner's entries. A
   graph that handles text of strangers needs a separate store with `trust="external"`.
L4 Entries of people and of other programs are also items, `{"content": text}`; withheld and expired entries
   are not.

Attacked in tests/surface/library/test_langgraph_store.py, in comparison with `InMemoryStore`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from muniment.api import Memory
from muniment.cancelling import Cancel, run_in_thread
from muniment.content.admission import check_entry
from muniment.content.gates import encode
from muniment.errors import BadName, InvalidScope, PathEscape, Refusal, StoreConflict, ToolError
from muniment.integrations.values import (
    collect_strings,
    create_entry_text,
    decode_name,
    encode_name,
    matches,
    read_value,
)
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import FileChange
from muniment.kernel.names import Scope, Trust, Verb, join_path
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath
from muniment.kernel.root import Kind
from muniment.operations.entries import Entries, StoredEntry
from muniment.operations.job import log_retry_or_raise
from muniment.sandbox.sandbox import WAIT_SECONDS
from muniment.store.trust import read_entry_created, read_entry_id

try:
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        InvalidNamespaceError,
        Item,
        ListNamespacesOp,
        MatchCondition,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
        validate_op_namespace,
    )
except ImportError:
    raise ImportError(
        "this needs langgraph-checkpoint 4.3 or later of its 4.x: pip install 'muniment[langgraph]'"
    ) from None

MAX_RANKED: Final = 100
"""Maximum items that a query ranks; the others follow unranked."""

RANKED_TOKENS: Final = 1_000_000
"""Maximum tokens of the ranked text, which is not displayed: more than any recall uses."""

ULID_TIME_CHARS: Final = 10
"""Characters of an id that contain its time, in milliseconds; source: github.com/ulid/spec."""

Namespace = tuple[str, ...]


class MunimentStore(BaseStore):
    """A store over a memory; threads may share one.

    Args:
        memory: owned by the caller, who closes it after the last graph.
        scope: the scope of all items; None: the first label of each namespace is the scope.
        trust: of stored values (L3).

    Raises:
        InvalidScope: the scope is not bound.
        ManagedMemoryUnavailable: a root was replaced.
        ValueError: the trust is unknown.

    Cost: a get is a read; a search reads every entry under its prefix; a put is a commit.
    """

    def __init__(self, memory: Memory, *, scope: str | None = None, trust: Trust | str = Trust.AGENT) -> None:
        context = memory.context
        self._memory, self._context, self._trust = memory, context, Trust(trust)
        self._scope = None if scope is None else context.select_scopes(scope)[0]
        self._entries = Entries(context, "program")
        self._lock = threading.Lock()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations (L2).

        Raises:
            InvalidNamespaceError: a namespace is invalid.
            InvalidScope: the scope of a put is not bound.
            BadArguments: a value is not a JSON object.
            NotImplementedError: a put has a time to live; entries of this memory expire on a date.
            PendingReview: the owner must approve a put or delete first.
            MunimentError: gates, quotas or the policy reject it, or the memory cannot be used.
        """
        return self._execute(list(ops))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations in a thread; if its task is cancelled, nothing is put after that."""
        return await run_in_thread(partial(self._execute, list(ops)))

    def _execute(self, ops: Sequence[Op], cancel: Cancel | None = None) -> list[Result]:
        for op in ops:
            _check_operation(op)
        with self._lock:
            deadline = Deadline(time.monotonic() + WAIT_SECONDS, cancel)
            deadline.check()
            results = [self._read(op) for op in ops]
            puts = {(op.namespace, str(op.key)): op for op in ops if isinstance(op, PutOp)}
            if puts:
                try:
                    self._put(list(puts.values()), deadline)
                except StoreConflict as conflict:
                    log_retry_or_raise(self._context.policy, "store", "", conflict)
                    self._put(list(puts.values()), deadline)
        return results

    def _read(self, op: Op) -> Result:
        match op:
            case GetOp():
                return self._get(op.namespace, str(op.key))
            case SearchOp():
                return self._search(op)
            case ListNamespacesOp():
                return self._list_namespaces(op)
            case _:
                return None

    # -- paths

    def _resolve_item(
        self, namespace: Namespace, key: str, *verbs: Verb
    ) -> tuple[CanonicalPath, Kind | None]:
        """Return the path and kind of an item: of the encoded key, or of the key itself if it is a file."""
        scope, labels = (self._scope, namespace) if self._scope else (Scope(namespace[0]), namespace[1:])
        if scope not in self._context.roots:
            choice = " or ".join(self._context.roots)
            message = f"unknown scope {scope!r}; begin the namespace with {choice}, or give the store a scope"
            raise InvalidScope(message)
        candidates = [(tuple(map(encode_name, labels)), encode_name(key)), (labels, key)]
        texts = [
            join_path(scope, join_path(".".join(folder), f"{name}{FILE_SUFFIX}"))
            for folder, name in candidates
        ]
        encoded = self._entries.resolve(texts[0], *verbs)
        if encoded[1] is None and texts[1] != texts[0] and "/" not in "".join((*labels, key)):
            try:
                literal = self._entries.resolve(texts[1], *verbs)
            except (PathEscape, Refusal, ToolError):
                return encoded
            return encoded if literal[1] is None else literal
        return encoded

    def _read_key(self, path: CanonicalPath) -> tuple[Namespace, str] | None:
        """Return the namespace and key of an entry; None if its path cannot be one of an item."""
        folder, _, name = path.rel.rpartition("/")
        labels = tuple(map(decode_name, folder.split("."))) if folder else ()
        namespace = labels if self._scope else (path.scope, *labels)
        if "/" in folder or not namespace or not all(labels) or any("." in label for label in labels):
            return None
        return namespace, decode_name(name.removesuffix(FILE_SUFFIX))

    def _list_items(self, prefix: Namespace = ()) -> Iterator[tuple[Namespace, str, CanonicalPath]]:
        for scope in (self._scope,) if self._scope else self._context.roots:
            if self._scope or not prefix or prefix[0] == scope:
                for path, row in self._entries.list_visible(scope, self._trust):
                    item_key = self._read_key(path)
                    if item_key is not None and row.held is None and item_key[0][: len(prefix)] == prefix:
                        yield *item_key, path

    # -- reading

    def _load_item(
        self, namespace: Namespace, key: str, path: CanonicalPath
    ) -> tuple[StoredEntry, dict[str, Any]] | None:
        """Return an entry and the fields of its item; None if it is withheld, expired, or deleted (L4)."""
        try:
            stored = self._entries.read(path)
        except (PathEscape, Refusal, ToolError):
            return None
        return stored, {
            "namespace": namespace,
            "key": key,
            "value": read_value(stored.entry),
            "created_at": read_entry_created(stored.entry) or stored.written_at,
            "updated_at": stored.written_at,
        }

    def _get(self, namespace: Namespace, key: str) -> Item | None:
        try:
            path, _ = self._resolve_item(namespace, key, Verb.READ)
        except (InvalidScope, PathEscape, Refusal, ToolError):
            return None
        stored = self._load_item(namespace, key, path)
        return None if stored is None else Item(**stored[1])

    def _search(self, op: SearchOp) -> list[SearchItem]:
        listed = [self._load_item(*item) for item in self._list_items(op.namespace_prefix)]
        found = [each for each in listed if each is not None and matches(each[1]["value"], op.filter or {})]
        scores = self._score_entries(op.query) if op.query else {}

        def rank(each: tuple[StoredEntry, dict[str, Any]]) -> tuple[float, str, CanonicalPath]:
            stored = each[0]
            return (
                -scores.get(stored.path.text, 0.0),
                read_entry_id(stored.entry)[:ULID_TIME_CHARS],
                stored.path,
            )

        return [
            SearchItem(**fields, score=scores.get(stored.path.text))
            for stored, fields in sorted(found, key=rank)[op.offset : op.offset + op.limit]
        ]

    def _score_entries(self, query: str) -> dict[str, float]:
        """Return scores of recalled entries: 1, 1/2, 1/3, …, since recall has an order but no scores."""
        recalled = self._memory.recaller.recall(
            query,
            scopes=self._scope and [self._scope],
            limit=MAX_RANKED,
            budget=RANKED_TOKENS,
            needs_entry=True,
        )
        if recalled.error is not None:
            raise recalled.error
        return {each.path: 1 / number for number, each in enumerate(recalled.entries, 1)}

    def _list_namespaces(self, op: ListNamespacesOp) -> list[Namespace]:
        conditions = op.match_conditions or ()
        found = {namespace for namespace, _, _ in self._list_items()}
        fitting = {
            each[: op.max_depth] for each in found if all(_matches_condition(each, one) for one in conditions)
        }
        return sorted(fitting)[op.offset : op.offset + op.limit]

    # -- writing

    def _put(self, puts: Sequence[PutOp], deadline: Deadline) -> None:
        changes = [change for op in puts if (change := self._create_change(op)) is not None]
        if changes:
            self._entries.commit_changes(changes, self._trust, deadline)

    def _create_change(self, op: PutOp) -> FileChange | None:
        try:
            path, kind = self._resolve_item(
                op.namespace, str(op.key), *([] if op.value is None else _WRITE_VERBS)
            )
        except (BadName, InvalidScope):
            if op.value is None:
                return None  # Such an item cannot exist.
            raise
        base = None if kind is None else self._entries.read_digest(path)
        if op.value is None:
            return None if base is None else FileChange(path, base, None)
        after = self._entries.encode_text(create_entry_text(op.value))
        check_entry(encode(collect_strings(op.value)), path.rel, self._context.policy.content)
        return FileChange(path, base, after)


_WRITE_VERBS: Final = (Verb.CREATE, Verb.MODIFY)


def _check_operation(op: Op) -> None:
    """Check that an operation is valid, also if it was not created by `put`, which checks its arguments."""
    validate_op_namespace(op)
    if not isinstance(op, GetOp | SearchOp | PutOp | ListNamespacesOp):
        raise ValueError(f"Unknown operation type: {type(op)}")  # noqa: TRY004  as other stores do
    if isinstance(op, GetOp | PutOp) and not op.namespace:
        raise InvalidNamespaceError("Namespace cannot be empty.")
    if isinstance(op, PutOp) and op.ttl is not None:
        raise NotImplementedError("a time to live is not supported; entries of this memory expire on a date")


def _matches_condition(namespace: Namespace, condition: MatchCondition) -> bool:
    size = len(condition.path)
    if condition.match_type not in {"prefix", "suffix"}:
        raise ValueError(f"Unsupported match type: {condition.match_type}")
    part = namespace[:size] if condition.match_type == "prefix" else namespace[len(namespace) - size :]
    return len(namespace) >= size and all(
        wanted in {"*", label} for wanted, label in zip(condition.path, part, strict=True)
    )
