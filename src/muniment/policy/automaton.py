"""Sets of paths as automata that read a path letter by letter, built as far as somebody walks them.

A `Language` has numbered states. Two of them are the same in all: `NEVER`, from where no path is in it, and
`ALWAYS`, from where every one is. The patterns are parsed here, by a reader of our own: pathspec stays the
oracle of the tests (tests/policy/test_automaton.py), and nothing of the run time is believed.

Contract:
    L1  For every canonical path, spelled in the letters of `alphabet`, `Patterns.exact` holds iff
        `AllowPatterns` match, and `Patterns.tree` iff `DenyPatterns` do.
    L2  A language that reaches `NEVER` or `ALWAYS` stays there, so that searches end early.
    L3  Every step that is taken for the first time is paid for; who has no budget left gets `OutOfBudget`.

Cost: a first step takes some µs for each pattern that is still open; the same step again is a lookup.
Source: Thompson, "Regular Expression Search Algorithm" (1968), with the subset construction on demand.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, Self

from muniment.policy.alphabet import Letter
from muniment.policy.grammar import fold
from muniment.policy.pattern import exact_form, fold_single, is_anchored, tree_form

NEVER: Final = 0
ALWAYS: Final = 1

Form = Literal["written", "folded", "single"]
"""How a pattern looks at a path: as the fields of `Letter`."""


class OutOfBudget(Exception):
    """More work than was granted: whoever searches answers "undecided"."""


@dataclass(slots=True)
class Budget:
    """How much may still be done, in steps of one pattern by one letter; about a µs each."""

    left: int

    def spend(self, amount: int) -> None:
        """Take it off.

        Raises:
            OutOfBudget: there is not so much left.
        """
        self.left -= amount
        if self.left < 0:
            raise OutOfBudget


class Language(ABC):
    """A set of paths."""

    start: int

    @abstractmethod
    def step(self, state: int, letter: int) -> int:
        """The state after one more letter, given by its number in the alphabet."""

    @abstractmethod
    def holds(self, state: int) -> bool:
        """Whether the path that led here is in the set."""

    @abstractmethod
    def telling(self, state: int) -> frozenset[int]:
        """The letters that may lead elsewhere than the first one, which stands for all others, does."""


@dataclass(slots=True)
class _Node:
    """A place in a pattern, and where each character leads from there.

    Attributes:
        form: in which form of the path the pattern reads.
        literal: by which character, if by one.
        stays: on any character but `/` it stays here as well.
        any_next: any character but `/` leads on.
        next: where `literal` or, with `any_next`, any character leads.
        accepts: a path may end here.
        certain: whatever follows, the path is in the set.
    """

    form: Form
    literal: str | None = None
    stays: bool = False
    any_next: bool = False
    next: frozenset[int] = frozenset()
    accepts: bool = False
    certain: bool = False


class Patterns(Language):
    """The paths that one of some patterns matches; use `exact` or `tree`."""

    def __init__(self, letters: tuple[Letter, ...], budget: Budget) -> None:
        self._letters, self._budget = letters, budget
        self._nodes: list[_Node] = []
        self._moves: dict[tuple[int, str], frozenset[int]] = {}
        self._numbers: dict[frozenset[int], int] = {frozenset(): NEVER}
        self._states: list[frozenset[int]] = [frozenset(), frozenset()]
        self._accepts = [False, True]
        self._steps: dict[tuple[int, int], int] = {}
        self._telling: dict[int, frozenset[int]] = {}
        self._letters_with: dict[tuple[Form, str | None], frozenset[int]] = {}
        self._long = frozenset(at for at, letter in enumerate(letters) if len(letter.folded) > 1)
        self.start = NEVER

    @classmethod
    def exact(cls, patterns: Iterable[str], letters: tuple[Letter, ...], budget: Budget) -> Self:
        """What `AllowPatterns` match."""
        made = cls(letters, budget)
        made.start = made._number(made._begins("written", map(exact_form, patterns), tree=False))
        return made

    @classmethod
    def tree(cls, patterns: Iterable[str], letters: tuple[Letter, ...], budget: Budget) -> Self:
        """What `DenyPatterns` match. Without a `?`, what matches as written matches folded as well."""
        made, patterns = cls(letters, budget), tuple(patterns)
        wild = [each for each in patterns if "?" in each]
        made.start = made._number(
            made._begins("folded", (tree_form(fold(each)) for each in patterns), tree=True)
            | made._begins("written", map(tree_form, wild), tree=True)
            | made._begins("single", (tree_form(fold_single(each)) for each in wild), tree=True)
        )
        return made

    def step(self, state: int, letter: int) -> int:
        """One letter; each pattern reads it in its own form."""
        if state <= ALWAYS:
            return state
        known = self._steps.get((state, letter))
        if known is None:
            known = self._steps[state, letter] = self._first_step(state, self._letters[letter])
        return known

    def holds(self, state: int) -> bool:
        """Whether one of the patterns matches the path so far."""
        return self._accepts[state]

    def telling(self, state: int) -> frozenset[int]:
        """The letters that a pattern waits for here, and those that fold to several characters."""
        known = self._telling.get(state)
        if known is None:
            nodes = (self._nodes[each] for each in self._states[state])
            awaited = (self._seen_as(node.form, node.literal) for node in nodes)
            known = self._telling[state] = self._long.union(*awaited) if state > ALWAYS else frozenset()
        return known

    def _seen_as(self, form: Form, char: str | None) -> frozenset[int]:
        known = self._letters_with.get((form, char))
        if known is None:
            seen = (at for at, letter in enumerate(self._letters) if getattr(letter, form) == char)
            known = self._letters_with[form, char] = frozenset(seen)
        return known

    def _first_step(self, state: int, letter: Letter) -> int:
        self._budget.spend(len(self._states[state]))
        reached: set[int] = set()
        for node in self._states[state]:
            reached |= self._read(node, getattr(letter, self._nodes[node].form))
        return self._number(frozenset(reached))

    def _read(self, node: int, text: str) -> frozenset[int]:
        known = self._moves.get((node, text))
        if known is None:
            here = {node}
            for char in text:
                here = {after for each in here for after in self._after(each, char)}
            known = self._moves[node, text] = frozenset(here)
        return known

    def _after(self, number: int, char: str) -> Iterable[int]:
        node = self._nodes[number]
        if node.certain:
            return (number,)
        if char == node.literal or (node.any_next and char != "/"):
            return node.next | {number} if node.stays and char != "/" else node.next
        return (number,) if node.stays and char != "/" else ()

    def _number(self, nodes: frozenset[int]) -> int:
        if any(self._nodes[each].certain for each in nodes):
            return ALWAYS
        number = self._numbers.get(nodes)
        if number is None:
            number = self._numbers[nodes] = len(self._states)
            self._states.append(nodes)
            self._accepts.append(any(self._nodes[each].accepts for each in nodes))
        return number

    def _begins(self, form: Form, patterns: Iterable[str], *, tree: bool) -> frozenset[int]:
        """Where reading begins. Patterns that are tied to no depth share the search for it."""
        begins, anywhere = frozenset[int](), frozenset[int]()
        for pattern in patterns:
            if is_anchored(pattern):
                begins |= self._chain(form, pattern, tree=tree)
            else:
                anywhere |= self._chain(form, pattern, tree=tree)
        return begins | self._any_depth(form, anywhere) if anywhere else begins

    def _add(self, node: _Node) -> int:
        self._nodes.append(node)
        return len(self._nodes) - 1

    def _chain(self, form: Form, pattern: str, *, tree: bool) -> frozenset[int]:
        """The nodes of one pattern, built from its end; those at its beginning."""
        ends_in_slash = pattern.endswith("/")
        segments = pattern.removeprefix("/").removesuffix("/").split("/")
        last = len(segments) - 1
        rest = frozenset([self._add(_Node(form, certain=True))])
        if segments[-1] == "**":  # Only in trees: `exact_form` leaves none at the end.
            segments.pop()
            then = rest
        elif ends_in_slash:
            then = frozenset([self._add(_Node(form, literal="/", next=rest))])
        else:
            then = frozenset([self._add(_Node(form, literal="/" if tree else None, next=rest, accepts=True))])
        for at, segment in reversed(list(enumerate(segments))):
            if segment == "**":
                then = self._any_depth(form, then)
                continue
            if at < last:
                then = frozenset([self._add(_Node(form, literal="/", next=then))])
            for char in reversed(segment):
                then = self._before(form, char, then)
        return then

    def _before(self, form: Form, char: str, then: frozenset[int]) -> frozenset[int]:
        if char == "*":
            return then | {self._add(_Node(form, stays=True, any_next=True, next=then))}
        if char == "?":
            return frozenset([self._add(_Node(form, any_next=True, next=then))])
        return frozenset([self._add(_Node(form, literal=char, next=then))])

    def _any_depth(self, form: Form, then: frozenset[int]) -> frozenset[int]:
        """No segment or several before `then`."""
        inside = self._add(_Node(form, literal="/", stays=True))
        begin = self._add(_Node(form, any_next=True, next=frozenset([inside])))
        self._nodes[inside].next = then | {begin}
        return then | {begin}


class All(Language):
    """The paths that are in every one of some languages; all paths if there are none."""

    def __init__(self, parts: Iterable[Language]) -> None:
        self._parts = tuple(parts)
        self._numbers: dict[tuple[int, ...], int] = {}
        self._states: list[tuple[int, ...]] = [(), ()]
        self._steps: dict[tuple[int, int], int] = {}
        self._telling: dict[int, frozenset[int]] = {}
        self.start = self._number(tuple(part.start for part in self._parts))

    def step(self, state: int, letter: int) -> int:
        """One letter in every part."""
        if state <= ALWAYS:
            return state
        known = self._steps.get((state, letter))
        if known is None:
            here = self._states[state]
            parts = tuple(part.step(at, letter) for part, at in zip(self._parts, here, strict=True))
            known = self._steps[state, letter] = self._number(parts)
        return known

    def holds(self, state: int) -> bool:
        """Whether every part holds."""
        if state <= ALWAYS:
            return state == ALWAYS
        here = self._states[state]
        return all(part.holds(at) for part, at in zip(self._parts, here, strict=True))

    def telling(self, state: int) -> frozenset[int]:
        """The letters of every part."""
        known = self._telling.get(state)
        if known is None:
            here = self._states[state]
            known = frozenset().union(
                *(part.telling(at) for part, at in zip(self._parts, here, strict=False))
            )
            self._telling[state] = known
        return known

    def _number(self, parts: tuple[int, ...]) -> int:
        if NEVER in parts:
            return NEVER
        if all(part == ALWAYS for part in parts):
            return ALWAYS
        number = self._numbers.get(parts)
        if number is None:
            number = self._numbers[parts] = len(self._states)
            self._states.append(parts)
        return number


class Not(Language):
    """The paths that are not in a language."""

    def __init__(self, part: Language) -> None:
        self._part = part
        self.start = _swapped(part.start)

    def step(self, state: int, letter: int) -> int:
        """One letter."""
        return _swapped(self._part.step(_swapped(state), letter))

    def holds(self, state: int) -> bool:
        """Whether the language does not hold."""
        return not self._part.holds(_swapped(state))

    def telling(self, state: int) -> frozenset[int]:
        """The letters of the language."""
        return self._part.telling(_swapped(state))


def _swapped(state: int) -> int:
    return ALWAYS - state if state <= ALWAYS else state
