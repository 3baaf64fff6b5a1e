"""Match paths by automaton, and an oracle for patterns that shares no code with it.

The oracle is `pathspec` with its default backend: PathSpec and GitIgnoreSpec match prepared text;
`compare_matchers`
compares all three on random pattern sets.
"""

import random
import unicodedata

from pathspec import GitIgnoreSpec, PathSpec

from muniment.errors import PathEscape, PolicyInvalid, Refusal
from muniment.kernel.decide import AllowPatterns, DenyPatterns, fold_single
from muniment.kernel.names import Scope
from muniment.kernel.path import canonicalise, fold
from muniment.policy.automaton import OTHER, Patterns, StepBudget, build_letters
from muniment.policy.pattern import check_pattern

SCOPES = (Scope("user"), Scope("team-2"))
# A name that no path and no pattern contains: it marks the end of an exact file.
END = "%"

_LETTERS = """
a b A s ss S \xdf \u1e9e i I \u0130 \u0131 \u03c3 \u03a3 \u03c2 \xe9 \xc9 - _ 1 . .md .. n N \u1ef1 \u304b
\u304c \u0301 \u0331 \u0345 \u0323 \u05b8 \u05d0 \u0e01 \u0e38 \u0915 \u094d \u093f
\u0587 \u0149 \u01f0 \u0390 \u1fb3 \u1f80 \u0398 \u03b8 \ua64a \u1c88 \uab70
"""
# Parts of names: letters that fold to the same letter, to several, or together with following ones.
PIECES = (*_LETTERS.split(), " ")


class PathReader:
    """Matches a path with a language, using only its letters."""

    def __init__(self, letters):
        self._letters = [(each.written, each.folded, each.single) for each in letters]
        self._named = [set("".join(forms)) - {OTHER} for forms in zip(*self._letters, strict=True)]
        self._covering = {}

    def matches(self, language, text):
        """Return whether the language contains the path."""
        state = language.start
        for char in text:
            if char not in self._covering:
                (self._covering[char],) = self._find_covering_letters(char)
            state = language.step(state, self._covering[char])
        return language.accepts(state)

    def _find_covering_letters(self, char):
        """Return the number of the letter that represents a character; exactly one does."""
        forms = zip(self._named, (char, fold(char), fold_single(char)), strict=True)
        seen = tuple("".join(each if each in named else OTHER for each in text) for named, text in forms)
        return [at for at, letter in enumerate(self._letters) if letter == seen]


def build_exact_matcher(patterns, backend):
    """Match exact files with pathspec: path and patterns get a unique last name."""
    files = (f"{each}/*" if each.endswith("/**") else each for each in patterns)
    spec = PathSpec.from_lines("gitignore", [f"{each}/{END}" for each in files], **backend)
    return lambda text: spec.match_file(f"{text}/{END}")


def build_tree_matcher(patterns, backend):
    """Match trees with gitignore: everything in a matched directory matches, in any of three spellings."""
    single = [each for each in patterns if "?" in each]
    spelt = ((str, patterns), (fold_fully, patterns), (fold_single_chars, single))
    specs = [(spell, GitIgnoreSpec.from_lines(map(spell, chosen), **backend)) for spell, chosen in spelt]

    def match(text):
        names = text.split("/")
        above = ["/".join(names[:end]) + "/" for end in range(1, len(names))]
        return any(spec.match_file(spell(each)) for spell, spec in specs for each in (text, *above))

    return match


def fold_fully(text):
    """Fold case and compatibility as Unicode defines it for identifiers (D147), until nothing changes."""
    while (after := unicodedata.normalize("NFKC", text.casefold())) != text:
        text = after
    return text


def fold_single_chars(text):
    """Fold the case of single characters whose folding stays single."""
    forms = ((char.casefold(), char.lower(), char) for char in text)
    return "".join(next(each for each in form if len(each) == 1) for form in forms)


def make_name(rng, pieces=PIECES):
    return "".join(rng.choices(pieces, k=rng.choice((1, 1, 2, 2, 3))))


def make_pattern(rng, *, deny, names=None, scopes=SCOPES):
    """Return a valid random pattern of some names and wildcards; it may match nothing."""
    names = names or [make_name(rng) for _ in range(4)]
    while True:
        count = rng.choice((1, 1, 2, 2, 3)) if rng.random() < 0.98 else 9
        body = "/".join(_make_segment(rng, names) for _ in range(count))
        first = rng.choice((*scopes, "*", "**", "?" * 4, "u*r", "*-?"))
        whole = f"/{first}/{body}" if not deny or rng.random() < 0.5 else body
        pattern = f"{whole}/" if deny and rng.random() < 0.3 else whole
        try:
            check_pattern(pattern, deny=deny, scopes=scopes, where="drawn")
        except PolicyInvalid:
            continue
        return pattern


def _make_segment(rng, names):
    name = rng.choice(names)
    start, end = name[: (at := rng.randint(0, len(name)))], name[at:]
    parts = (name, name, "**", "*", "?", f"{name}*", f"*{name}", f"{name}?", f"?{name}", f"*{name}*")
    return rng.choice((*parts, f"{start}*{end}", f"{start}?{end}", f"{name}.md", "*.md", ".*"))


def make_path(rng, patterns, scopes=SCOPES):
    """Return a canonical path that some of the patterns almost match."""
    for _ in range(20):
        pattern = rng.choice(patterns)
        names = [_make_instance(rng, each) for each in pattern.strip("/").split("/")]
        if not pattern.startswith("/") or names[0] not in scopes or rng.random() < 0.1:
            names = [rng.choice(scopes), *names]
        names += [make_name(rng) for _ in range(rng.choice((0, 0, 0, 0, 1, 1, 2, 9 - len(names))))]
        text = "/".join(name for name in names if name)
        if rng.random() < 0.6:
            text = _misspell(rng, text)
        try:
            path = canonicalise(text, scopes)
        except (PathEscape, Refusal):
            continue
        if path.rel:
            return path
    return canonicalise(f"{rng.choice(scopes)}/a.md", scopes)  # Some patterns match no canonical path.


def _make_instance(rng, segment):
    if segment == "**":
        return "/".join(make_name(rng) for _ in range(rng.choice((0, 1, 1, 2))))
    counts = {"*": (0, 1, 2), "?": (1,)}
    parts = (rng.choices(PIECES, k=rng.choice(counts[char])) if char in counts else char for char in segment)
    return "".join(map("".join, parts))


def _misspell(rng, text):
    scope, _, rest = text.partition("/")
    at = rng.randint(0, len(rest))
    changed = rest[:at] + rng.choice((*PIECES, "/", "")) + rest[at + rng.randint(0, 1) :]
    mixed = "".join(rng.choice((char, char.upper(), char.lower())) for char in rest)
    swapped = (rest.replace("ss", "\xdf"), rest.replace("\xdf", "SS"), fold_fully(rest))
    rest = rng.choice((rest.upper(), rest.lower(), rest.swapcase(), *swapped, mixed, changed, changed))
    return unicodedata.normalize("NFC", f"{scope}/{rest}")


def compare_matchers(seed, sets, paths, **backend):
    """Match `paths` paths with each of `sets` pattern sets; return the number of pairs, and differences."""
    rng, pairs, differences = random.Random(seed), 0, []
    for deny in (bool(number % 2) for number in range(sets)):
        names = [make_name(rng) for _ in range(4)]
        patterns = tuple(make_pattern(rng, deny=deny, names=names) for _ in range(rng.choice((1, 1, 2, 4))))
        letters = build_letters((), patterns) if deny else build_letters(patterns, ())
        reader, budget = PathReader(letters), StepBudget(10_000_000)
        language = (Patterns.tree if deny else Patterns.exact)(patterns, letters, budget)
        matcher = DenyPatterns(patterns) if deny else AllowPatterns(patterns)
        oracle = (build_tree_matcher if deny else build_exact_matcher)(patterns, backend)
        for path in (make_path(rng, patterns) for _ in range(paths)):
            decided = matcher.match(path.text, fold(path.text)) if deny else matcher.match(path)
            pairs += 1
            if {reader.matches(language, path.text), oracle(path.text)} != {decided}:
                differences.append((patterns, path.text, decided))
    return pairs, differences
