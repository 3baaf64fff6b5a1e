"""The shortest canonical path of a set of paths, or the certainty that there is none.

Breadth first over what the automaton of the set and that of the name grammar have read, so the first path
found is a shortest one, and running out of states is the proof that there is none.

Contract:
    S1  `Nothing` means: no canonical path is in the set.
    S2  A path that is returned was confirmed by the caller, who asks the real decision; no other path of the
        set is shorter, in characters, unless `Found.is_shortest` is false.
    S3  Whatever costs too much, or cannot be confirmed, is `Undecided`.

What of the name grammar is searched: scopes, and segments that are neither empty nor begin with a space nor
end in a space or dot. The rest (depth, lengths, names of devices, normal form) only takes paths away: the
proof holds without it, and the caller's confirmation sees to the paths. Once a path turns out to be none, the
search begins again and keeps depth apart as well; then, what the last letter was, too: so `con`, a device,
does not stand in the way of `cona`, which the same pattern `con*` matches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from muniment.errors import PathEscape, Refusal
from muniment.names import MAX_DEPTH, Scope
from muniment.policy.alphabet import Letter
from muniment.policy.automaton import NEVER, Budget, Language, OutOfBudget
from muniment.policy.grammar import CanonicalPath, canonicalise, fold, segment_problem
from muniment.policy.normal import is_normalised

MAX_STATES: Final = 200_000
"""States of one search. Source: policy.md; the shipped policies need some hundreds."""

MAX_WORK: Final = 4_000_000
"""Steps of one prover, for its automata and its searches together: some 3 s."""

MAX_UNCONFIRMED: Final = 64
"""Paths of one search that may turn out not to be canonical."""

_BEGIN, _OPEN, _SOUND = range(3)
"""Of a segment: nothing read yet; it ends in a space or dot; it may end here."""


@dataclass(frozen=True, slots=True)
class Found:
    """A path of the set; `is_shortest` unless a shorter one was found that is no canonical path."""

    path: CanonicalPath
    is_shortest: bool


@dataclass(frozen=True, slots=True)
class Nothing:
    """The set holds no canonical path. `states` were looked at."""

    states: int


@dataclass(frozen=True, slots=True)
class Undecided:
    """Nobody knows, because of `why`."""

    why: str


Outcome = Found | Nothing | Undecided

_Node = tuple[int, int, int, int]
"""State of the language, of the segment, depth, and the last letter (both 0 where they are not looked at)."""


def shortest(
    language: Language,
    letters: tuple[Letter, ...],
    scopes: Collection[Scope],
    budget: Budget,
    confirms: Callable[[CanonicalPath], bool],
) -> Outcome:
    """Search the language for its shortest canonical path.

    Args:
        language: over `letters`.
        letters: from `alphabet`.
        scopes: the first segments that paths may have.
        budget: shared by all that is asked in one go.
        confirms: whether a path is what is sought, by other means than these automata.
    """
    best: Found | Undecided = Undecided("it takes more steps than are granted")
    for care in range(3):
        try:
            outcome = _Search(language, letters, budget, confirms, care).run(scopes)
        except OutOfBudget:
            return best
        if isinstance(outcome, Nothing) or (isinstance(outcome, Found) and outcome.is_shortest):
            return outcome
        if isinstance(outcome, Found) or isinstance(best, Undecided):
            best = outcome
    return best


class _TooManyUnconfirmed(Exception):
    """Path after path is outside the name grammar."""


class _Search:
    """One breadth-first search. Of `care` 1 it looks at depth, of 2 at the last letter as well."""

    def __init__(
        self,
        language: Language,
        letters: tuple[Letter, ...],
        budget: Budget,
        confirms: Callable[[CanonicalPath], bool],
        care: int,
    ) -> None:
        self._language, self._letters, self._budget, self._confirms = language, letters, budget, confirms
        self._with_depth, self._with_last = care > 0, care > 1
        self._reached: dict[_Node, tuple[_Node, int] | Scope] = {}
        self._unconfirmed = 0
        self._slash = len(letters) - 1

    def run(self, scopes: Collection[Scope]) -> Outcome:
        """Level by level; a scope joins when paths of its length are looked at."""
        waiting = sorted(scopes, key=lambda scope: (-len(scope), scope))
        level: list[_Node] = []
        length = 0
        while level or waiting:
            length = length if level else len(waiting[-1])
            while waiting and len(waiting[-1]) == length:
                level += self._enter(waiting.pop())
            try:
                outcome = self._advance(level)
            except _TooManyUnconfirmed:
                break
            if isinstance(outcome, Found):
                return outcome
            level = outcome
            length += 1
        if self._unconfirmed:
            return Undecided("every path that was found is outside the name grammar in a way not looked at")
        return Nothing(len(self._reached))

    def _enter(self, scope: Scope) -> list[_Node]:
        state = self._language.start
        by_char = {letter.text: number for number, letter in enumerate(self._letters)}
        for char in f"{scope}/":
            state = self._language.step(state, by_char.get(char, 0))
        node = (state, _BEGIN, 2 if self._with_depth else 0, 0)
        if state == NEVER or node in self._reached:
            return []
        self._reached[node] = scope
        return [node]

    def _advance(self, level: list[_Node]) -> list[_Node] | Found:
        """Read one more letter from every node; a path that is confirmed ends it."""
        further: list[_Node] = []
        for node in level:
            state, segment, depth, last = node
            letters = {0, self._slash} | self._language.telling(state)
            self._budget.spend(len(letters))
            for number in sorted(letters):
                after = _after(segment, depth, self._letters[number].text)
                if after is None:
                    continue
                if self._with_last and segment != _BEGIN and self._spoils(node, last, number):
                    self._unconfirmed += 1
                    continue
                now_last = number if self._with_last else 0
                reached = (self._language.step(state, number), *after, now_last)
                if reached[0] == NEVER or reached in self._reached:
                    continue
                self._reached[reached] = (node, number)
                further.append(reached)
                if after[0] == _SOUND and self._language.holds(reached[0]):
                    path = self._confirmed(reached)
                    if path is not None:
                        return Found(path, is_shortest=not self._unconfirmed)
            if len(self._reached) > MAX_STATES:
                raise OutOfBudget
        return further

    def _spoils(self, node: _Node, before: int, after: int) -> bool:
        """Whether one more letter ends a name that is none, or melts into the letter before it."""
        one, other = self._letters[before].text, self._letters[after].text
        if other in {"/", "."}:
            name = self._spelled(node)[1].rpartition("/")[2].rstrip(" .")
            return bool(name) and segment_problem(name) is not None
        return not is_normalised("NFKC", one + other) or fold(one + other) != fold(one) + fold(other)

    def _spelled(self, node: _Node) -> tuple[Scope, str]:
        """The scope and the path below it that led to the node."""
        text = ""
        came = self._reached[node]
        while not isinstance(came, str):
            node, number = came
            text = self._letters[number].text + text
            came = self._reached[node]
        return came, text

    def _confirmed(self, node: _Node) -> CanonicalPath | None:
        """The path that led to the node, if it is canonical and the caller confirms it."""
        scope, text = self._spelled(node)
        try:
            path = canonicalise(f"{scope}/{text}", (scope,))
        except (PathEscape, Refusal):
            path = None
        if path is not None and self._confirms(path):
            return path
        self._unconfirmed += 1
        if self._unconfirmed > MAX_UNCONFIRMED:
            raise _TooManyUnconfirmed
        return None


def _after(segment: int, depth: int, text: str) -> tuple[int, int] | None:
    """What one more character makes of a segment and its depth; None: no canonical path begins like that."""
    if text == "/":
        if segment != _SOUND or depth == MAX_DEPTH:
            return None
        return _BEGIN, depth + 1 if depth else 0
    if text == " ":
        return None if segment == _BEGIN else (_OPEN, depth)
    return _OPEN if text == "." else _SOUND, depth
