"""Sets of paths, as automata that read a path letter by letter. A state is created when it is first reached.

The states of a `Language` have numbers. Two states are the same in all languages. After `NEVER`, no
continuation of the path is in the set. After `ALWAYS`, every continuation is. The patterns are parsed here,
independently of the kernel's matchers; tests compare both (tests/units/policy/test_automaton.py).

Contract:
    L1  For every canonical path, spelled in the letters of `build_letters`, `Patterns.exact` accepts iff
        `AllowPatterns` match, and `Patterns.tree` iff `DenyPatterns` do.
    L2  A language that enters `NEVER` or `ALWAYS` stays there, so that searches end early.
    L3  The first computation of every step is charged to the budget; without budget it raises `OutOfBudget`.

Cost: the first computation of a step takes some µs for each pattern that can still match; repeating it is a
lookup.

Source: Thompson, "Regular Expression Search Algorithm" (1968), with the subset construction on demand.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Final, Generic, Literal, Self, TypeVar
from unicodedata import combining

from muniment.errors import PathEscape, Refusal
from muniment.kernel.decide import fold_single, is_anchored
from muniment.kernel.names import MAX_DEPTH, Scope
from muniment.kernel.normal_forms import is_normalised
from muniment.kernel.path import (
    CanonicalPath,
    canonicalise,
    find_segment_problem,
    fold,
    is_canonical_character,
)

# -- alphabet ----------------------------------------------------------------------------------------
#
# The characters of canonical paths, grouped into letters: as many as the patterns can distinguish.
#
# A pattern contains a few characters; all others are the same for it. A letter represents all characters
# that no given pattern distinguishes, in each of the three forms in which paths are matched (`decide`, M1 and
# M2): as written, folded, and with the case of single characters folded.
#
# Contract:
#     A1  Exactly one letter covers each character that the name grammar allows, and has it in all three forms
#         as the patterns see them. So a path is a sequence of letters, and a property of all sequences is one
#         of all paths.
#     A2  Folding a path is folding its characters one by one: that is a rule of the name grammar (G2), not an
#         assumption.
#
# Not guaranteed: that every sequence of letters is a canonical path. It may be too long, be a device name of
# Windows, or contain a mark that composes with the letter before it.
#
# Cost: 40 ms once in a process, to find the characters that folding changes; then 1 ms for 20 patterns.

OTHER: Final = "\uffff"
"""Represents every character that no pattern contains. It is a Unicode noncharacter, so no pattern contains
it.
"""

WILDCARDS: Final = frozenset("*?/")

CASED_BELOW: Final = 0x20000
"""No character from this code point on changes when it is folded; a test checks all of them.

Source: Unicode reserves planes 2 and 3 for ideographs, which have no case. The later planes have no
    characters that a name may contain.
"""

_ORDINARY: Final = "abcdefghijklmnopqrstuvwxyz0123456789-_"
_ALONE: Final = "-_0123456789"


@dataclass(frozen=True, slots=True)
class Letter:
    """A set of characters that the given patterns cannot distinguish.

    Attributes:
        text: the simplest of these characters, for examples.
        written: the character as patterns read it: itself, or `OTHER` if no pattern contains it.
        folded: the folded character as patterns read it; one character or more.
        single: the character with single case folding, as patterns read it; one character.
    """

    text: str
    written: str
    folded: str
    single: str


_PatternCharacters = tuple[frozenset[str], frozenset[str], frozenset[str]]
"""The characters in patterns, for each of the three forms of a path."""

_SLASH: Final = Letter("/", "/", "/", "/")


def build_letters(exact: Iterable[str], trees: Iterable[str]) -> tuple[Letter, ...]:
    """Return one letter for each set of characters that the given patterns do not distinguish.

    The first letter represents all characters that no pattern contains; the last letter is `/`.

    Args:
        exact: patterns of allow rules and quotas.
        trees: patterns of deny rules.
    """
    exact, trees = tuple(exact), tuple(trees)
    wild = [pattern for pattern in trees if "?" in pattern]
    folded, single = _collect_characters(map(fold, trees)), _collect_characters(map(fold_single, wild))
    return _group_letters((_collect_characters([*exact, *wild]), folded, single))


def build_tree_letters(tree: str) -> tuple[Letter, ...]:
    """Return letters that are enough to spell a path which a deny pattern matches.

    They are the folded characters of the pattern, and one letter for all other characters. They do not cover
    every character (contract A1), so they can give an example path, but not prove that no path exists.
    """
    characters = (
        _collect_characters([tree]),
        _collect_characters([fold(tree)]),
        _collect_characters([fold_single(tree)]),
    )
    spelled = sorted(characters[1])
    return (*(_build_letter(char, characters) for char in (_choose_filler(spelled), *spelled)), _SLASH)


@lru_cache(maxsize=16)
def _group_letters(named: _PatternCharacters) -> tuple[Letter, ...]:
    spelled = sorted(char for char in frozenset().union(*named) if char != OTHER)
    found = sorted(
        (_build_letter(char, named) for char in (*spelled, *find_cased_characters())), key=_sort_key
    )
    by_form: dict[tuple[str, str, str], Letter] = {}
    for letter in (_build_letter(_choose_filler(spelled), named), *found):
        by_form.setdefault((letter.written, letter.folded, letter.single), letter)
    return (*by_form.values(), _SLASH)


def _choose_filler(named: Collection[str]) -> str:
    """Return one character to represent all characters that no pattern contains. Folding does not change it.

    If a pattern contains a combining mark, the returned character does not compose with marks.
    """
    ideographs = map(chr, range(0x4E00, 0x9FFF))  # more than the patterns of a policy can contain
    ordinary = _ALONE if any(map(combining, named)) else _ORDINARY
    return next(char for char in chain(ordinary, ideographs) if char not in named)


def _build_letter(char: str, named: _PatternCharacters) -> Letter:
    forms = zip((char, fold(char), fold_single(char)), named, strict=True)
    return Letter(
        char, *("".join(each if each in names else OTHER for each in text) for text, names in forms)
    )


def _sort_key(letter: Letter) -> tuple[bool, bool, str]:
    return not letter.text.isascii(), letter.text not in _ORDINARY, letter.text


def _collect_characters(patterns: Iterable[str]) -> frozenset[str]:
    named = frozenset("".join(patterns)) - WILDCARDS
    return frozenset(char for char in named if is_canonical_character(char))


@lru_cache(maxsize=1)
def find_cased_characters() -> tuple[str, ...]:
    """Return every character that a name may contain and that folding changes, about 1 400."""
    found = (char for char in map(chr, range(CASED_BELOW)) if char.casefold() != char)
    return tuple(char for char in found if is_canonical_character(char) and fold(char) != char)


# -- automaton ---------------------------------------------------------------------------------------

NEVER: Final = 0
ALWAYS: Final = 1

Form = Literal["written", "folded", "single"]
"""The form of a path that a pattern reads; also the name of a field of `Letter`."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Memo(dict[_Key, _Value]):
    """A cache of the results of `compute`, which is called once for each key."""

    def __init__(self, compute: Callable[[_Key], _Value]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, key: _Key) -> _Value:
        answer = self[key] = self._compute(key)
        return answer


class OutOfBudget(Exception):
    """A `StepBudget` is used up; the search then returns "undecided"."""


@dataclass(slots=True)
class StepBudget:
    """A limit on the work of searches.

    Attributes:
        remaining: the number of steps that are left. In a step, one pattern reads one letter; it takes about
            1 µs.
    """

    remaining: int

    def spend(self, amount: int) -> None:
        """Subtract `amount` from the budget.

        Raises:
            OutOfBudget: the budget is too small.
        """
        self.remaining -= amount
        if self.remaining < 0:
            raise OutOfBudget


class Language(ABC):
    """A set of paths, as an automaton.

    Attributes:
        start: the state before the first letter.
    """

    start: int

    @abstractmethod
    def step(self, state: int, letter: int) -> int:
        """Return the state after `state` and one more letter, given by its number in the alphabet."""

    @abstractmethod
    def accepts(self, state: int) -> bool:
        """Return whether a path that ends in `state` is in the set."""

    @abstractmethod
    def get_relevant_letters(self, state: int) -> frozenset[int]:
        """Return the letters that may lead from `state` to another state than the first letter does.

        All other letters lead to the same state as the first letter of the alphabet.
        """


_Content = TypeVar("_Content")


class _LazyLanguage(Language, Generic[_Content]):
    """A language that creates a state when it is first reached. The content of a state identifies it.

    Args:
        nowhere: any content, for `NEVER` and `ALWAYS`; it has no meaning.
    """

    def __init__(self, nowhere: _Content) -> None:
        self._contents = [nowhere, nowhere]  # The contents of `NEVER` and `ALWAYS` have no meaning.
        self._numbers = Memo(self._new_number)
        self._steps, self._relevant_letters = Memo(self._compute_step), Memo(self._compute_relevant_letters)

    def step(self, state: int, letter: int) -> int:
        """Return the state that follows `state` after one more letter."""
        return self._steps[state, letter] if state > ALWAYS else state

    def get_relevant_letters(self, state: int) -> frozenset[int]:
        """Return the letters that may lead from `state` to another state than the first letter does."""
        return self._relevant_letters[state] if state > ALWAYS else frozenset()

    def _new_number(self, content: _Content) -> int:
        self._contents.append(content)
        return len(self._contents) - 1

    @abstractmethod
    def _compute_step(self, at: tuple[int, int]) -> int:
        """Compute the next state for `at`, a state and a letter, when it is needed for the first time."""

    @abstractmethod
    def _compute_relevant_letters(self, state: int) -> frozenset[int]:
        """Compute the result of `get_relevant_letters` when it is needed for the first time."""


@dataclass(slots=True)
class _Node:
    """A position in a pattern, and the next positions for each character.

    Attributes:
        form: the form of the path that the pattern reads.
        literal: the character to read, if there is exactly one.
        can_stay: on any character but `/`, the pattern may stay at this position.
        any_next: any character but `/` leads to `next`.
        next: the positions after `literal` or, with `any_next`, after any character but `/`.
        accepts: a path that ends here is in the set.
        is_certain: the path is in the set with any continuation.
    """

    form: Form
    literal: str | None = None
    can_stay: bool = False
    any_next: bool = False
    next: frozenset[int] = frozenset()
    accepts: bool = False
    is_certain: bool = False


class Patterns(_LazyLanguage[frozenset[int]]):
    """The set of paths that at least one of several patterns matches; create it by `exact` or `tree`.

    The content of a state is a set of nodes.
    """

    def __init__(self, letters: tuple[Letter, ...], budget: StepBudget) -> None:
        super().__init__(frozenset())
        self._letters, self._budget = letters, budget
        self._nodes: list[_Node] = []
        self._moves, self._letters_with = Memo(self._read_characters), Memo(self._find_letters)
        self._multi_fold_letters = frozenset(
            index for index, letter in enumerate(letters) if len(letter.folded) > 1
        )
        self.start = NEVER

    @classmethod
    def exact(cls, patterns: Iterable[str], letters: tuple[Letter, ...], budget: StepBudget) -> Self:
        """Return the set of paths that `AllowPatterns` with these patterns match."""
        language = cls(letters, budget)
        language.start = language._number(language._add_patterns("written", patterns, tree=False))
        return language

    @classmethod
    def tree(cls, patterns: Iterable[str], letters: tuple[Letter, ...], budget: StepBudget) -> Self:
        """Return the set of paths that `DenyPatterns` with these patterns match.

        If a pattern without a `?` matches the written form of a path, it also matches the folded form. So
        only patterns with a `?` read all three forms.
        """
        language, patterns = cls(letters, budget), tuple(patterns)
        wild = [each for each in patterns if "?" in each]
        language.start = language._number(
            language._add_patterns("folded", map(fold, patterns), tree=True)
            | language._add_patterns("written", wild, tree=True)
            | language._add_patterns("single", map(fold_single, wild), tree=True)
        )
        return language

    def accepts(self, state: int) -> bool:
        """Return whether one of the patterns matches a path that ends in `state`."""
        return state == ALWAYS or any(self._nodes[each].accepts for each in self._contents[state])

    def _compute_relevant_letters(self, state: int) -> frozenset[int]:
        """Return the letters that a pattern can read next, and those that fold to several characters."""
        nodes = (self._nodes[each] for each in self._contents[state])
        return self._multi_fold_letters.union(
            *(self._letters_with[node.form, node.literal] for node in nodes)
        )

    def _find_letters(self, seen: tuple[Form, str | None]) -> frozenset[int]:
        form, char = seen
        return frozenset(index for index, letter in enumerate(self._letters) if getattr(letter, form) == char)

    def _compute_step(self, at: tuple[int, int]) -> int:
        """Return the next state for `at`, a state and a letter; each pattern reads its own form."""
        nodes, letter = self._contents[at[0]], self._letters[at[1]]
        self._budget.spend(len(nodes))
        moves = (self._moves[node, getattr(letter, self._nodes[node].form)] for node in nodes)
        return self._number(frozenset[int]().union(*moves))

    def _read_characters(self, at: tuple[int, str]) -> frozenset[int]:
        here = {at[0]}
        for char in at[1]:
            here = {after for each in here for after in self._step_node(each, char)}
        return frozenset(here)

    def _step_node(self, number: int, char: str) -> Iterable[int]:
        node = self._nodes[number]
        if node.is_certain:
            return (number,)
        if char == node.literal or (node.any_next and char != "/"):
            return node.next | {number} if node.can_stay and char != "/" else node.next
        return (number,) if node.can_stay and char != "/" else ()

    def _number(self, nodes: frozenset[int]) -> int:
        if any(self._nodes[each].is_certain for each in nodes):
            return ALWAYS
        return self._numbers[nodes] if nodes else NEVER

    def _add_patterns(self, form: Form, patterns: Iterable[str], *, tree: bool) -> frozenset[int]:
        """Add the nodes of patterns, and return the nodes at which a path begins.

        Patterns that may begin at any depth share the nodes that search for their beginning.
        """
        begins, anywhere = frozenset[int](), frozenset[int]()
        for pattern in patterns:
            if is_anchored(pattern):
                begins |= self._add_pattern(form, pattern, tree=tree)
            else:
                anywhere |= self._add_pattern(form, pattern, tree=tree)
        return begins | self._add_any_depth(form, anywhere) if anywhere else begins

    def _add_node(self, node: _Node) -> int:
        self._nodes.append(node)
        return len(self._nodes) - 1

    def _add_pattern(self, form: Form, pattern: str, *, tree: bool) -> frozenset[int]:
        """Add the nodes of one pattern, starting from its end, and return the nodes at which a path begins.

        Args:
            form: the form of the path that the pattern reads.
            pattern: the pattern.
            tree: whether it is from a deny rule, which also matches all paths below a match.
        """
        ends_in_slash = pattern.endswith("/")
        segments = pattern.removeprefix("/").removesuffix("/").split("/")
        rest = frozenset([self._add_node(_Node(form, is_certain=True))])
        if segments[-1] == "**" and not tree:  # Any file below.
            segments.append("*")
        last = len(segments) - 1
        if tree and not ends_in_slash and segments[-1] in {"*", "**"}:  # Any path below.
            segments.pop()
            then = rest
        elif ends_in_slash:
            then = frozenset([self._add_node(_Node(form, literal="/", next=rest))])
        else:
            then = frozenset(
                [self._add_node(_Node(form, literal="/" if tree else None, next=rest, accepts=True))]
            )
        for index, segment in reversed(list(enumerate(segments))):
            if segment == "**":
                then = self._add_any_depth(form, then)
                continue
            if index < last:
                then = frozenset([self._add_node(_Node(form, literal="/", next=then))])
            for char in reversed(segment):
                then = self._add_before(form, char, then)
        return then

    def _add_before(self, form: Form, char: str, then: frozenset[int]) -> frozenset[int]:
        if char == "*":
            return then | {self._add_node(_Node(form, can_stay=True, any_next=True, next=then))}
        if char == "?":
            return frozenset([self._add_node(_Node(form, any_next=True, next=then))])
        return frozenset([self._add_node(_Node(form, literal=char, next=then))])

    def _add_any_depth(self, form: Form, then: frozenset[int]) -> frozenset[int]:
        """Add nodes that skip any number of segments before `then`, and return the first nodes."""
        inside = self._add_node(_Node(form, literal="/", can_stay=True))
        begin = self._add_node(_Node(form, any_next=True, next=frozenset([inside])))
        self._nodes[inside].next = then | {begin}
        return then | {begin}


class Intersection(_LazyLanguage[tuple[int, ...]]):
    """The set of paths that are in all of several languages; without languages, it contains all paths.

    The content of a state is one state of each language.
    """

    def __init__(self, parts: Iterable[Language]) -> None:
        super().__init__(())
        self._parts = tuple(parts)
        self.start = self._number(tuple(part.start for part in self._parts))

    def accepts(self, state: int) -> bool:
        """Return whether a path that ends in `state` is in all of the languages."""
        if state <= ALWAYS:
            return state == ALWAYS
        return all(part.accepts(position) for part, position in self._iterate_parts(state))

    def _compute_relevant_letters(self, state: int) -> frozenset[int]:
        return frozenset[int]().union(
            *(part.get_relevant_letters(position) for part, position in self._iterate_parts(state))
        )

    def _compute_step(self, at: tuple[int, int]) -> int:
        state, letter = at
        return self._number(tuple(part.step(here, letter) for part, here in self._iterate_parts(state)))

    def _iterate_parts(self, state: int) -> Iterable[tuple[Language, int]]:
        return zip(self._parts, self._contents[state], strict=True)

    def _number(self, parts: tuple[int, ...]) -> int:
        if NEVER in parts:
            return NEVER
        return ALWAYS if all(part == ALWAYS for part in parts) else self._numbers[parts]


class Complement(Language):
    """The set of paths that are not in another language."""

    def __init__(self, part: Language) -> None:
        self._part = part
        self.start = _swap_constants(part.start)

    def step(self, state: int, letter: int) -> int:
        """Return the state that follows `state` after one more letter."""
        return _swap_constants(self._part.step(_swap_constants(state), letter))

    def accepts(self, state: int) -> bool:
        """Return whether a path that ends in `state` is not in the other language."""
        return not self._part.accepts(_swap_constants(state))

    def get_relevant_letters(self, state: int) -> frozenset[int]:
        """Return the relevant letters of the other language in `state`."""
        return self._part.get_relevant_letters(_swap_constants(state))


def _swap_constants(state: int) -> int:
    return ALWAYS - state if state <= ALWAYS else state


# -- search ------------------------------------------------------------------------------------------
#
# The shortest canonical path of a set of paths, or a proof that the set is empty.
#
# Breadth first over the states of the set's automaton and of the name grammar. So the first path found is a
# shortest one, and a search without further states proves that the set is empty.
#
# Contract:
#     S1  `EmptySet` means: no canonical path is in the set.
#     S2  The caller confirmed every returned path by the real decision. No other path of the set is shorter,
#         in characters, unless `FoundPath.is_shortest` is false.
#     S3  A search that costs too much, or whose paths cannot be confirmed, returns `Undecided`.
#
# The search covers these parts of the name grammar: scopes, and segments that are not empty, do not begin
# with a space and do not end in a space or dot. The other rules (depth, lengths, names of devices, normal
# form) only exclude paths: the proof does not need them, and the caller's confirmation checks the paths. If a
# path that was found is invalid, the search restarts and also tracks the depth. If that is not enough, it
# also tracks the last letter. So `con`, a device, does not prevent finding `cona`, which the same pattern
# `con*` matches.

MAX_STATES: Final = 200_000
"""Maximum number of states of one search. Source: policy.md; the shipped policies need some hundreds."""

MAX_WORK: Final = 4_000_000
"""Maximum number of steps of one prover, for its automata and its searches together: about 3 s."""

MAX_UNCONFIRMED: Final = 64
"""Maximum number of paths that one search may find and that prove not to be canonical."""

_BEGIN, _INCOMPLETE, _COMPLETE = range(3)
"""States of a segment: nothing is read yet; it ends in a space or dot, so it is incomplete; it may end here.
"""


@dataclass(frozen=True, slots=True)
class FoundPath:
    """Result of a search: a path of the set.

    Attributes:
        path: the path.
        is_shortest: whether no path of the set is shorter; False: unknown, since another path was found
            invalid.
    """

    path: CanonicalPath
    is_shortest: bool


@dataclass(frozen=True, slots=True)
class EmptySet:
    """Result of a search: the set contains no canonical path."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """Result of a search that ended without a proof, because of `reason`."""

    reason: str


SearchOutcome = FoundPath | EmptySet | Undecided

_SearchNode = tuple[int, int, int, int]
"""State of the language, state of the segment, depth, and last letter; the last two are 0 if not tracked."""


def find_shortest_path(
    language: Language,
    letters: tuple[Letter, ...],
    scopes: Collection[Scope],
    budget: StepBudget,
    is_confirmed: Callable[[CanonicalPath], bool],
) -> SearchOutcome:
    """Return the shortest canonical path of a set, or that it is empty, or that this could not be decided.

    Args:
        language: the set of paths, over `letters`.
        letters: the alphabet, from `build_letters` or `build_tree_letters`.
        scopes: the first segments that paths may have.
        budget: shared by all searches of one request.
        is_confirmed: returns whether a found path is in the set, by other means than these automata.
    """
    best: FoundPath | Undecided = Undecided("it takes more steps than the budget allows")
    for precision in range(3):
        try:
            outcome = _Search(language, letters, budget, is_confirmed, precision).run(scopes)
        except OutOfBudget:
            return best
        if isinstance(outcome, EmptySet) or (isinstance(outcome, FoundPath) and outcome.is_shortest):
            return outcome
        if isinstance(outcome, FoundPath) or isinstance(best, Undecided):
            best = outcome
    return best


class _Search:
    """One breadth-first search. With `precision` 1 it tracks the depth, with 2 also the last letter."""

    def __init__(
        self,
        language: Language,
        letters: tuple[Letter, ...],
        budget: StepBudget,
        is_confirmed: Callable[[CanonicalPath], bool],
        precision: int,
    ) -> None:
        self._language, self._letters, self._budget, self._is_confirmed = (
            language,
            letters,
            budget,
            is_confirmed,
        )
        self._with_depth, self._with_last = precision > 0, precision > 1
        self._reached: dict[_SearchNode, tuple[_SearchNode, int] | Scope] = {}
        self._unconfirmed = 0
        self._slash = len(letters) - 1

    def run(self, scopes: Collection[Scope]) -> SearchOutcome:
        """Search the paths in the order of their length, and return the result.

        A scope is added when the search reaches its length.
        """
        waiting = sorted(scopes, key=lambda scope: (-len(scope), scope))
        level: list[_SearchNode] = []
        length = 0
        while level or waiting:
            length = length if level else len(waiting[-1])
            while waiting and len(waiting[-1]) == length:
                level += self._start_scope(waiting.pop())
            outcome = self._advance(level)
            if outcome is None:
                break
            if isinstance(outcome, FoundPath):
                return outcome
            level = outcome
            length += 1
        if self._unconfirmed:
            return Undecided("no path that the search found is valid")
        return EmptySet()

    def _start_scope(self, scope: Scope) -> list[_SearchNode]:
        state = self._language.start
        by_char = {letter.text: number for number, letter in enumerate(self._letters)}
        for char in f"{scope}/":
            state = self._language.step(state, by_char.get(char, 0))
        node = (state, _BEGIN, 2 if self._with_depth else 0, 0)
        if state == NEVER or node in self._reached:
            return []
        self._reached[node] = scope
        return [node]

    def _advance(self, level: list[_SearchNode]) -> list[_SearchNode] | FoundPath | None:
        """Read one more letter from every node of a level.

        Returns:
            The nodes of the next level; or a confirmed path, if one is found; or None if more than
            `MAX_UNCONFIRMED` paths are not confirmed.
        """
        further: list[_SearchNode] = []
        for node in level:
            state, segment, depth, last = node
            letters = {0, self._slash} | self._language.get_relevant_letters(state)
            self._budget.spend(len(letters))
            for number in sorted(letters):
                after = _advance_segment(segment, depth, self._letters[number].text)
                if after is None:
                    continue
                if self._with_last and segment != _BEGIN and self._is_invalid_after(node, last, number):
                    self._unconfirmed += 1
                    continue
                now_last = number if self._with_last else 0
                reached = (self._language.step(state, number), *after, now_last)
                if reached[0] == NEVER or reached in self._reached:
                    continue
                self._reached[reached] = (node, number)
                further.append(reached)
                if after[0] == _COMPLETE and self._language.accepts(reached[0]):
                    path = self._confirm_path(reached)
                    if path is not None:
                        return FoundPath(path, is_shortest=not self._unconfirmed)
                    if self._unconfirmed > MAX_UNCONFIRMED:
                        return None
            if len(self._reached) > MAX_STATES:
                raise OutOfBudget
        return further

    def _is_invalid_after(self, node: _SearchNode, before: int, after: int) -> bool:
        """Return whether one more letter makes a path invalid.

        This is so if the letter ends an invalid name, or composes with the letter before it.
        """
        one, other = self._letters[before].text, self._letters[after].text
        if other in {"/", "."}:
            name = self._rebuild_path(node)[1].rpartition("/")[2].rstrip(" .")
            return bool(name) and find_segment_problem(name) is not None
        return not is_normalised("NFKC", one + other) or fold(one + other) != fold(one) + fold(other)

    def _rebuild_path(self, node: _SearchNode) -> tuple[Scope, str]:
        """Return the scope, and the path below it, that lead to a node."""
        text = ""
        origin = self._reached[node]
        while not isinstance(origin, str):
            node, number = origin
            text = self._letters[number].text + text
            origin = self._reached[node]
        return origin, text

    def _confirm_path(self, node: _SearchNode) -> CanonicalPath | None:
        """Return the path that leads to a node if it is canonical and the caller confirms it, else None."""
        scope, text = self._rebuild_path(node)
        try:
            path = canonicalise(f"{scope}/{text}", (scope,))
        except (PathEscape, Refusal):
            path = None
        if path is not None and self._is_confirmed(path):
            return path
        self._unconfirmed += 1
        return None


def _advance_segment(segment: int, depth: int, text: str) -> tuple[int, int] | None:
    """Return the state and depth of a segment after one more character, or None if it is not allowed here."""
    if text == "/":
        if segment != _COMPLETE or depth == MAX_DEPTH:
            return None
        return _BEGIN, depth + 1 if depth else 0
    if text == " ":
        return None if segment == _BEGIN else (_INCOMPLETE, depth)
    return _INCOMPLETE if text == "." else _COMPLETE, depth
