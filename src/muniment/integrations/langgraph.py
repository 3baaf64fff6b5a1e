"""Provide the memory as a store and as a node of LangGraph: `muniment[langgraph]`.

    import muniment
    from muniment.integrations.langgraph import MunimentStore, create_memory_node

    with muniment.open(".") as memory:
        builder.add_node("memory", create_memory_node(memory))
        graph = builder.compile(store=MunimentStore(memory, scope="user"))

L1 Each item of the store is an entry, which recall also finds. Its namespace is a folder of the scope: the
   item with the namespace `("memories", "ann")` and the key `k1` is `user/memories.ann/k1.md`. `values.py`
   converts names and values.
L2 A batch is one commit: all of its puts are stored, or none. `history` lists the commit, and `undo` reverses
   it. Reads of a batch see the state before it. When `put` returns, the item is stored; if a put is rejected,
   it raises.
L3 A stored value has at most the trust that the caller gives. Only the owner can replace the owner's entries.
   A graph that handles text of strangers needs a separate store with `trust="external"`.
L4 Entries that people or other programs wrote are also items, with the value `{"content": text}`. Withheld
   and expired entries are not.

L5 The messages of a thread contain the standing context once, and the entries for a message of the user once,
   also if the thread continues from a checkpoint. If other code removes these messages, for example because
   it summarises the thread, they return with the next turn.
L6 The memory is in messages of the user, never of the system: a part of its text has lower trust.

Attacked in tests/surface/library/test_langgraph_store.py, in comparison with `InMemoryStore`, and in
test_langgraph_node.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from muniment.store.handles import read_entry_id
from muniment.store.trust import read_entry_created
from muniment.types import Recalled

try:
    from langchain_core.messages import BaseMessage, HumanMessage, RemoveMessage, SystemMessage
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
        "this module needs langgraph-checkpoint 4, from 4.3 on; run: pip install 'muniment[langgraph]'"
    ) from None

MAX_RANKED: Final = 100
"""Maximum number of items that a query ranks; all others follow without a rank."""

RANKED_TOKENS: Final = 1_000_000
"""Maximum tokens of the recall that ranks items. Its text is not used, so the limit is higher than any recall
needs.
"""

ULID_TIME_CHARS: Final = 10
"""Number of characters at the beginning of an id that contain its time in milliseconds; source:
github.com/ulid/spec.
"""

STANDING_ID: Final = "muniment-standing"
"""Id of the message with the standing context."""

RECALL_ID: Final = "muniment-recall-"
"""Prefix of the id of a message with recalled entries; the id of the message that they help with follows."""

ENTRIES_KEY: Final = "muniment_entries"
"""Key in a message's `additional_kwargs` of the ids of the entries that the message contains."""

_REMOVE_ALL: Final = "__remove_all__"
"""Id with which LangGraph's `add_messages` removes all messages (`REMOVE_ALL_MESSAGES`)."""

Namespace = tuple[str, ...]


class MunimentStore(BaseStore):
    """A LangGraph store whose items are entries of a memory. Threads may share it.

    Args:
        memory: an open memory; the caller closes it after the last graph.
        scope: the scope of all items; None: the first label of each namespace is the scope.
        trust: the trust of stored values. Use `external` for a graph that handles text of strangers.

    Raises:
        InvalidScope: the scope is unknown, or has no directory.
        ManagedMemoryUnavailable: a directory of the memory was replaced.
        ValueError: the trust is unknown.

    Cost: a get reads one file; a search reads every entry under its prefix; a put is a commit.
    """

    def __init__(self, memory: Memory, *, scope: str | None = None, trust: Trust | str = Trust.AGENT) -> None:
        context = memory.context
        self._memory, self._context, self._trust = memory, context, Trust(trust)
        self._scope = None if scope is None else context.select_scopes(scope)[0]
        self._entries = Entries(context, "program")
        self._lock = threading.Lock()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations, and return their results; all puts and deletes are one commit.

        Raises:
            InvalidNamespaceError: a namespace is invalid.
            InvalidScope: the scope of a put is unknown, or has no directory.
            BadArguments: a value is not a JSON object.
            NotImplementedError: a put has a time to live, which this store does not support.
            PendingReview: the owner must approve a put or delete first.
            MunimentError: the policy or a check rejects a put or delete, or the memory cannot be used.
        """
        return self._execute(list(ops))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations like `batch`, in a thread.

        If the awaiting task is cancelled, nothing is written after that.
        """
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
        """Return the path of an item, and the kind of the file there.

        The name of the file is the encoded key. If only a file with the unencoded key exists, return its
        path.

        Args:
            namespace: the namespace of the item.
            key: the key of the item.
            verbs: the policy must grant one of them; empty: the path must be visible.
        """
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
        """Return the namespace and key of an entry; None if its path cannot be the path of an item."""
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
        """Return an entry with the fields of its item; None if the entry is withheld, expired or deleted."""
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
        """Return a score for each entry that helps with a query: 1, 1/2, 1/3 and so on.

        Recall returns the entries in order, but without scores.
        """
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
    """Raise an error if an operation is invalid, even if it was created without the methods of the store."""
    validate_op_namespace(op)
    if not isinstance(op, GetOp | SearchOp | PutOp | ListNamespacesOp):
        raise ValueError(f"Unknown operation type: {type(op)}")  # noqa: TRY004  as other stores do
    if isinstance(op, GetOp | PutOp) and not op.namespace:
        raise InvalidNamespaceError("Namespace cannot be empty.")
    if isinstance(op, PutOp) and op.ttl is not None:
        raise NotImplementedError(
            "a time to live is not supported, because entries expire on a date; call put without ttl"
        )


def _matches_condition(namespace: Namespace, condition: MatchCondition) -> bool:
    size = len(condition.path)
    if condition.match_type not in {"prefix", "suffix"}:
        raise ValueError(f"Unsupported match type: {condition.match_type}")
    part = namespace[:size] if condition.match_type == "prefix" else namespace[len(namespace) - size :]
    return len(namespace) >= size and all(
        wanted in {"*", label} for wanted, label in zip(condition.path, part, strict=True)
    )


# -- node --------------------------------------------------------------------------------------------


def create_memory_node(
    memory: Memory, *, budget: int | None = None
) -> Callable[[Mapping[str, Any]], dict[str, list[BaseMessage]]]:
    """Return a node that adds the memory to the messages of a thread; run it before the model.

    The node puts the standing context in front of the messages, but after a message of the system. If the
    last message is of the user, the node puts the entries that help with it before this message. The state
    must have the key `messages` with the reducer `add_messages`, as `MessagesState` has it. If the memory
    cannot be read, the node adds nothing.

    Args:
        memory: an open memory; the caller closes it after the last graph.
        budget: maximum tokens of the standing context, as for `Memory.standing_context`.
    """

    def add_memory(state: Mapping[str, Any]) -> dict[str, list[BaseMessage]]:
        messages: list[BaseMessage] = list(state["messages"])
        ids = {each.id for each in messages}
        standing, recalled = list[BaseMessage](), list[BaseMessage]()
        if STANDING_ID not in ids:
            standing = _create_messages(memory.standing_context(budget), STANDING_ID)
        *earlier, last = messages or [SystemMessage("")]
        recall_id = f"{RECALL_ID}{last.id}"
        if isinstance(last, HumanMessage) and recall_id not in ids and last.id != STANDING_ID:
            exclude = [
                entry
                for each in (*standing, *messages)
                for entry in each.additional_kwargs.get(ENTRIES_KEY, ())
            ]
            recalled = _create_messages(memory.recall(_read_text(last), exclude=exclude), recall_id)
        if not standing and not recalled:
            return {"messages": []}
        system = sum(isinstance(each, SystemMessage) for each in messages[:1])
        changed = [*messages[:system], *standing, *earlier[system:], *recalled, *messages[-1:]]
        return {"messages": [RemoveMessage(id=_REMOVE_ALL), *changed]}

    return add_memory


def _create_messages(recalled: Recalled, message_id: str) -> list[BaseMessage]:
    """Return a list with a message that has the text of a result; if the text is empty, an empty list."""
    entries = {ENTRIES_KEY: [each.id for each in recalled.entries]}
    return [HumanMessage(recalled.text, id=message_id, additional_kwargs=entries)] if recalled.text else []


def _read_text(message: BaseMessage) -> str:
    """Return the text of a message, without images and other content."""
    blocks = [message.content] if isinstance(message.content, str) else message.content
    texts = (each if isinstance(each, str) else each.get("text", "") for each in blocks)
    return "\n".join(filter(None, texts))
