"""Find the entries that are similar to a fact, so that a run can update them.

The candidates come from the search of recall, and are read and judged in the same way (E2 of
`recall/recaller.py`). These are excluded: entries that the run's policy hides; withheld and expired entries;
entries with text that addresses an agent against the rules; and entries of other scopes. Each entry that a
run depends on is a precondition of its commit, whether the model sees the entry or not.

R1  The requester relies on an entry for a fact if the entry has at least the requester's trust and does not
    end before the fact. If an item of a list of facts has the text of the entry, the end of this item counts.
R2  A fact may replace an entry under three conditions: the requester has at least the entry's trust, the
    policy lets the run change the entry, and neither of the two has an end date.
R3  A language model sees an entry that has at least the requester's trust, or at least workspace trust. Text
    of agents and external authors does not reach a model for a requester with more trust.

Separate from `remember.py`, which commits: this module only reads. Attacked in
tests/units/operations/test_related.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Final

from muniment.agent.model import Brief, RelatedEntry
from muniment.content.entry import PINNED_FOLDER, parse
from muniment.content.expiry import End
from muniment.content.provenance import split_separate_items
from muniment.content.words import build_comparison_key, list_statements
from muniment.kernel.cancel import Deadline
from muniment.kernel.decide import Policy, PolicyEvaluator
from muniment.kernel.names import Digest, Trust, Verb
from muniment.kernel.path import CanonicalPath
from muniment.names import ContextMode
from muniment.operations.job_context import JobContext
from muniment.recall.block import format_age
from muniment.recall.query import read_query
from muniment.recall.reading import ReadEntry
from muniment.recall.root_reader import RootReader
from muniment.recall.search import DISPLAYABLE_IN_ROOTS, Search, SearchRequest
from muniment.recall.stems import Stemmer
from muniment.store.audit import timestamp
from muniment.store.handles import read_entry_id
from muniment.store.ledger import CommitRow
from muniment.store.trust import SEE
from muniment.types import SimilarEntry
from muniment.types.keys import RootKey

MAX_RELATED: Final = 8
"""Maximum number of related entries in a brief."""

MAX_BODY_CHARS: Final = 4_000
"""Maximum length of a related entry. A longer one is a document: it is not a fact, and no fact replaces it.
"""

_EXTRA_CANDIDATES: Final = 8
"""Additional candidates of the search, because some of them may be excluded."""


_LINKED: Final = f"""
    SELECT entry.root, entry.rel, entry.ident FROM entry WHERE {DISPLAYABLE_IN_ROOTS}
        AND (entry.ident IN (SELECT value FROM json_each(?))
            OR entry.digest IN (SELECT value FROM json_each(?)))
    ORDER BY entry.root, entry.rel
"""  # noqa: S608  constants of this package


def find_related(
    brief: Brief,
    request_trust: Trust,
    context: JobContext,
    policy: Policy,
    deadline: Deadline,
    find_end: Callable[[str], End | None],
) -> tuple[RelatedEntry, ...]:
    """Return the entries that are similar to the fact of a brief, the nearest first; none for a clean run.

    Args:
        brief: the brief of the run.
        request_trust: the trust of the requester.
        context: the memory.
        policy: the policy of the run, which may be narrower than that of `context`.
        deadline: the deadline of the search.
        find_end: returns when a text ends: the fact, or an item of a list of facts.

    Raises:
        ManagedMemoryUnavailable, PathEscape, Cancelled, DeadlineExceeded: as `RootReader`.

    Cost: that of a recall.
    """
    if brief.context is ContextMode.CLEAN:
        return ()
    judge, now = PolicyEvaluator(policy), datetime.now(UTC)
    scopes = {each.name for each in brief.scopes}
    candidate_reader = RootReader(
        policy, context.roots, context.state, judge, context.policy, scopes, deadline
    )
    query = read_query(brief.fact, _create_stemmer(), is_fact=True)
    wanted = SearchRequest(
        query,
        candidate_reader.keys,
        (),
        timestamp(now),
        MAX_RELATED + _EXTRA_CANDIDATES,
        candidate_reader.can_display,
    )
    search = Search(context.state.catalog, _create_stemmer())
    texts = (brief.fact, *split_separate_items(brief.fact))
    selection = candidate_reader.find_and_read(
        lambda: search.find_similar(texts, wanted, deadline), MAX_RELATED
    )
    ends = {build_comparison_key(text): find_end(text) for text in texts}
    found: list[RelatedEntry] = []
    for reading in selection.readings:
        path = CanonicalPath(candidate_reader.get_scope(reading.hit.key.root), reading.hit.key.rel)
        if len(reading.entry.body) <= MAX_BODY_CHARS:
            is_protected = PINNED_FOLDER in path.rel.split("/")[:-1] or not judge.allows(Verb.MODIFY, path)
            # The old entry would not be restored when the fact ends.
            is_protected = is_protected or brief.ends is not None
            found.append(_create_related(reading, path, ends, request_trust, now, is_protected=is_protected))
    return tuple(found)


def _create_related(
    reading: ReadEntry,
    path: CanonicalPath,
    ends: Mapping[str, End | None],
    request_trust: Trust,
    now: datetime,
    *,
    is_protected: bool,
) -> RelatedEntry:
    entry = reading.entry
    statements = list_statements(entry.body) if reading.trust.satisfies(request_trust) else ()
    is_replaceable = request_trust.satisfies(reading.highest_trust) and not entry.has_end_date
    return RelatedEntry(
        id=read_entry_id(entry),
        path=path,
        digest=reading.hit.key.digest,
        trust=reading.trust,
        age=format_age(reading.written_at, now),
        type=entry.type,
        title=reading.name,
        body=entry.body.strip(),
        statements=frozenset(
            statement for statement in statements if entry.is_valid_until(ends.get(statement))
        ),
        is_replaceable=is_replaceable and not is_protected,
        is_visible=_is_visible_to_model(reading.trust, request_trust),
    )


def list_dependencies(related: Iterable[RelatedEntry]) -> dict[CanonicalPath, Digest]:
    """Return the entries that a run depends on, as the digest of each by its path.

    These are the related entries that a model sees, that the requester relies on, or that may be replaced.
    """
    return {
        each.path: each.digest
        for each in related
        if each.is_visible or each.is_replaceable or each.statements
    }


def find_linked_entries(context: JobContext, done: CommitRow) -> tuple[SimilarEntry, ...]:
    """Return the entries to which a commit links its new entries, except those that a recall may not return.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be read.
    """
    new = (item.change.after for item in done.changes if item.change.before is None and not item.is_erased)
    links = [(parse(after).muniment or {}).get(SEE) for after in new if after is not None]
    names = json.dumps([name for each in links for name in (each if isinstance(each, list) else [each])])
    scopes = context.map_keys_to_scopes()
    values = (json.dumps(list(scopes)), timestamp(), names, names)
    rows = context.state.catalog.rows(_LINKED, values)
    return tuple(SimilarEntry(f"{scopes[RootKey(root)]}/{rel}", ident or "") for root, rel, ident in rows)


def _is_visible_to_model(trust: Trust, request: Trust) -> bool:
    """Return whether the model of a request may see a text (rule R3 in the module docstring).

    Args:
        trust: the trust of the text.
        request: the trust of the requester.
    """
    return trust.satisfies(request) or trust.satisfies(Trust.WORKSPACE)


@cache
def _create_stemmer() -> Stemmer:
    """Return the stemmer that all runs of this process share."""
    return Stemmer()
