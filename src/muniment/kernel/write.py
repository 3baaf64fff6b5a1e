"""Intent, land, done: what is judged comes to the disk and into a journal, both or neither.

A commit is two steps of a journal: an *intent*, which holds all that recovery needs to take it back, and
*done*, which makes it history. In between the files change. What is not done is taken back.

- R1 `recover` runs under the locks of the roots; a commit of a living process holds its locks, so what is
  found unfinished here has nobody any more.
- R2 a file is touched only if it is as before the commit or as that left it. Anything else is somebody's
  later work: it stays, and is told.
- R3 afterwards nothing of the commit is left: no file, no directory that it made and nobody uses, no
  temporary name; what a person had written in place of an index is kept as an entry.
- R4 the journal forgets the commit last, once what is derived is right: a recovery may be killed as well.
- R5 a journal is believed about what it may have done and no more: bytes come back only to where it knows
  them from, and nothing is taken back that the policy would not let be done now.
- R6 `replay` writes files of entries in locked roots, and each only where what stands there is what the
  journal says was there: what somebody else made of a copy is found, not written over.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from muniment.kernel._directory import temporary_name
from muniment.kernel.change import _SEAL, ChangeSet, FileChange, Judged, Replayed, Returned, digest, plain
from muniment.kernel.decide import Deny, Policy
from muniment.kernel.decide import Judge as Decider
from muniment.kernel.judge import Facts, Known
from muniment.kernel.land import Landed, LockedRoots, Stuck, check_landable, clear, land, remove_directories
from muniment.kernel.names import INDEX_DIRECTORY, INDEX_NAME, Digest, RelPath, Scope, Verb
from muniment.kernel.path import CanonicalPath, check_suffix
from muniment.kernel.refusal import Refused

_TOKEN_BYTES: Final = 6
_COUNTER_BYTES: Final = 2
_FIRST_OF_INDEX: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class Intent:
    """A commit that was begun.

    Attributes:
        number: of the commit in its journal.
        token: with which its temporary names begin, see `temporary_of`.
        changes: by the number that chooses their temporary names; those of other roots may be left out.
        made: directories that did not exist before it.
        task: for what it is told of.
    """

    number: int
    token: str
    changes: Mapping[int, FileChange]
    made: tuple[CanonicalPath, ...]
    task: str = ""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What recovery did about an intent.

    Attributes:
        intent: the commit.
        left: files that somebody changed since, and that were left alone.
        kept: files that hold what somebody wrote meanwhile.
    """

    intent: Intent
    left: tuple[CanonicalPath, ...]
    kept: tuple[CanonicalPath, ...]


class Journal(Protocol):
    """What was begun and done. Each call is durable when it returns."""

    def begin(self, judged: Judged, token: str) -> int:
        """Keep an intent; its number."""

    def finish(self, number: int, judged: Judged, notes: Sequence[str]) -> None:
        """Make an intent history."""

    def abandon(self, number: int, scopes: Collection[Scope], recovered: Recovered | None = None) -> None:
        """Forget an intent: nothing of it is left in the files of `scopes`, or what `recovered` says."""

    def unfinished(self, scopes: Collection[Scope]) -> Sequence[Intent]:
        """What was begun in any of `scopes` and is not done, the newest first."""

    def knows(self, path: CanonicalPath, of: Digest) -> bool:
        """Whether bytes of that digest stood at the path, before or after a commit."""


def new_token() -> str:
    """Random text for the temporary names of one commit."""
    return secrets.token_hex(_TOKEN_BYTES)


def temporary_of(token: str, number: int) -> str:
    """The temporary name for the change of a number, below 32 768, of the commit with that token."""
    return temporary_name(lambda _: bytes.fromhex(token) + number.to_bytes(_COUNTER_BYTES, "big"))


def temporary_of_index(token: str, number: int) -> str:
    """As `temporary_of`, for the number of an index file."""
    return temporary_of(token, _FIRST_OF_INDEX + number)


def is_of_index(temporary: str) -> bool:
    """Whether a temporary name of a commit is one of `temporary_of_index`."""
    number = temporary.removesuffix(".tmp")[-2 * _COUNTER_BYTES :]
    return int(number, 16) >= _FIRST_OF_INDEX


def write(
    judged: Judged, held: LockedRoots, journal: Journal, follow: Callable[[Landed, str], Sequence[str]]
) -> tuple[str, ...]:
    """Carry out what was judged; what a person should know of it.

    Args:
        judged: all of it, or none.
        held: the locked roots.
        journal: keeps the intent before, and makes it history afterwards.
        follow: brings up to date what is derived from the files, with temporary names by the token that it
            is given; its notes.

    Raises:
        TypeError, KeyError: as `check_landable`: nothing is begun.
        StoreConflict, PathEscape, NotAFile, ManagedMemoryUnavailable, Stuck: as `land`.
        Whatever `journal` and `follow` do: then it is taken back, now or by the next recovery.
    """
    check_landable(judged, held)
    token = new_token()
    scopes = frozenset(path.scope for path in judged.change_set.paths)
    number = journal.begin(judged, token)
    temporary = partial(temporary_of, token)
    try:
        landed = land(judged, held, temporary)
    except Stuck:
        raise  # The intent stays: recovery will try again.
    except BaseException:
        journal.abandon(number, scopes)
        raise
    try:
        notes = tuple(follow(landed, token))
        journal.finish(number, judged, notes)
    except BaseException:
        # What is not done may not be seen; the intent stays for what cannot be taken back now. But
        # a signal may also come just after it was done.
        if any(intent.number == number for intent in journal.unfinished(scopes)):
            land(Returned(_SEAL, judged.change_set.changes), held, temporary)
            remove_directories((each for made in judged.made for each in made), held)
        raise
    return notes


def replay(changes: Collection[FileChange], held: LockedRoots) -> None:
    """Carry out in a copy of the memory what was judged and done in another one (R6).

    Nothing judges it anew: whoever may write the journal says what stands in the copy, and nothing beyond.
    It is not durable: a copy that was cut off is made anew.

    Args:
        changes: each with what stood there before; none of them at the name of an index.
        held: the locked roots of the copy.

    Raises:
        Refusal: a path is none of an entry.
        TypeError, KeyError: it is no change, or of a root that is not locked.
        StoreConflict: something else stands there. Nothing is changed.
        PathEscape, NotAFile, ManagedMemoryUnavailable, Stuck: as `land`.
    """
    chosen = plain(ChangeSet(tuple(changes))).changes
    for each in chosen:
        check_suffix(each.path)
        if each.path.rel == INDEX_NAME or each.path.rel.split("/")[0] == INDEX_DIRECTORY:
            raise Refused("an index is made from entries", rule="replay", layer="kernel")
    land(Replayed(_SEAL, chosen), held, partial(temporary_of, new_token()), durable=False)


def recover(
    held: LockedRoots,
    journal: Journal,
    policy: Policy,
    facts: Facts,
    follow: Callable[[Sequence[Recovered]], None],
) -> tuple[Recovered, ...]:
    """Take back what unfinished commits did in the roots of `held` (R1 to R5).

    Args:
        held: where to do it.
        journal: whose intents.
        policy: says what may be done; what it no longer lets be done stays, and is told.
        facts: tells an index of ours from what somebody wrote.
        follow: brings up to date what is derived, once the files are back; only then the journal forgets.

    Raises:
        ManagedMemoryUnavailable: a file or the journal cannot be written; nothing is lost, the next
            recovery tries again.
        Whatever `journal` and `follow` do; likewise.
    """
    done = tuple(
        _recovered(intent, held, journal.knows, policy, facts) for intent in journal.unfinished(held)
    )
    if done:
        follow(done)
    for each in done:
        journal.abandon(each.intent.number, frozenset(held), each)
    return done


def clear_index(held: LockedRoots, scope: Scope, facts: Facts) -> None:
    """Drop what index writes outside any commit left under temporary names when they were killed.

    Whoever writes an index holds the root's lock, as the caller does: so these have nobody any more.
    """
    for rel in ("", INDEX_DIRECTORY):
        directory = CanonicalPath(scope, RelPath(rel))
        clear(directory, held, is_of_index, lambda _, content: _is_of_ours(content, facts), keep=False)


def _recovered(intent: Intent, held: LockedRoots, knows: Known, policy: Policy, facts: Facts) -> Recovered:
    numbered = zip(intent.changes, plain(ChangeSet(tuple(intent.changes.values()))).changes, strict=True)
    ours = {number: each for number, each in numbered if each.path.scope in held}
    decider = Decider(policy)
    may = {number: each for number, each in ours.items() if _may_return(each, knows, decider)}
    numbers = tuple(may)
    landed = land(
        Returned(_SEAL, tuple(may.values())), held, lambda at: temporary_of(intent.token, numbers[at])
    )
    above = {directory for each in may.values() for directory in _above(each.path)}
    # Those that the rules let, not what equals them: a journal may make objects of its own.
    remove_directories([each for each in above if each in intent.made], held)
    places = {each.path.parent for each in may.values()}
    for scope in {each.path.scope for each in ours.values()}:
        places |= {CanonicalPath(scope, RelPath(rel)) for rel in ("", INDEX_DIRECTORY)}
    prefix = temporary_of(intent.token, 0).removesuffix(f"{bytes(_COUNTER_BYTES).hex()}.tmp")

    def is_worthless(name: str, content: bytes) -> bool:
        return is_of_index(name) and _is_of_ours(content, facts)

    kept = [
        path
        for place in sorted(places)
        for path in clear(place, held, lambda name: name.startswith(prefix), is_worthless, keep=True)
    ]
    refused = tuple(each.path for number, each in ours.items() if number not in may)
    return Recovered(intent, (*landed.left, *refused), tuple(kept))


def _may_return(change: FileChange, knows: Known, decider: Decider) -> bool:
    """Whether it may be taken back (R5)."""
    if change.before is not None and change.after is None:
        verdict = decider.decide_removal(change.path)
    else:
        verdict = decider.decide(Verb.CREATE if change.before is None else Verb.MODIFY, change.path)
    if isinstance(verdict, Deny):
        return False
    return change.before is None or knows(change.path, digest(change.before))


def _above(path: CanonicalPath) -> Iterator[CanonicalPath]:
    """The directories above a file, but for the root."""
    while (path := path.parent).rel:
        yield path


def _is_of_ours(content: bytes, facts: Facts) -> bool:
    return facts.is_index(content.rstrip(b"\0"))  # Zeros stay when the power fails.
