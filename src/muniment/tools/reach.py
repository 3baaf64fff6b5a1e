"""From the text of a path to the file or directory that it leads to, granted under both of its names.

1. The text is canonical: an escape or `bad_name` otherwise (`policy/grammar.py`).
2. The policy grants the request on the path as written; nothing else is looked at before that.
3. Links of the run's map are resolved: what leaves the root is an escape (`policy/grammar.py`).
4. The policy grants the same on the path as resolved. The refusal names the rule, and not that name: what is
   hidden stays hidden behind a link.

One file has one name, the resolved one: what follows (overlay, claims, quotas, change-set, what a search
shows) knows no other. Without a map both names are the same, and a link is an escape once it is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from muniment.errors import NotAFile, PathEscape, Refusal, Refused
from muniment.names import Scope, Verb, joined
from muniment.policy.decide import Allow, Deny, Judge, Verdict
from muniment.policy.grammar import CanonicalPath, Links, canonicalise, resolve


@dataclass(frozen=True, slots=True)
class Reached:
    """Where a path leads.

    Attributes:
        written: the path as somebody wrote it.
        path: the path without links; the same where it meets none.
        is_directory: only a directory can stand there, if anything does; else nobody asked yet.
    """

    written: CanonicalPath
    path: CanonicalPath
    is_directory: bool = False

    @property
    def names(self) -> tuple[CanonicalPath, ...]:
        """The path as written and, if that is another, as resolved: what the policy is asked about."""
        return (self.written,) if self.path == self.written else (self.written, self.path)

    def below(self, path: CanonicalPath) -> Reached:
        """`path`, which stands beneath this directory, as it is reached from here."""
        inside = path.rel[len(joined(self.path.rel, "")) :]
        return Reached(CanonicalPath(self.written.scope, joined(self.written.rel, inside)), path)


class Reach:
    """What the paths of one run lead to.

    Args:
        judge: of the run's policy.
        scopes: of the run.
        links: of each scope whose links are resolved.
    """

    def __init__(self, judge: Judge, scopes: Collection[Scope], links: Mapping[Scope, Links]) -> None:
        self._judge, self._scopes, self._links = judge, scopes, links

    def file(self, unsafe_path: str, *verbs: Verb) -> Reached:
        """The file that a path leads to, if the policy grants one of `verbs` on it.

        Raises:
            PathEscape, BadName, Refused: steps 1 to 4.
            NotAFile: it leads to a scope, or only to a directory.
        """
        written = canonicalise(unsafe_path, self._scopes)
        if not written.rel:
            text = written.text
            raise NotAFile(f"{text} is a scope; name a file in it, such as {text}/topic/name.md")
        reached = self._resolved(written, partial(self._one_of, verbs))
        if reached.is_directory:
            raise NotAFile(f"{written.text} leads to a folder; name a file in it")
        return reached

    def directory(self, unsafe_path: str) -> Reached:
        """The scope or directory that a path leads to, if the policy lets it be looked into.

        Raises:
            PathEscape, BadName, Refused: steps 1 to 4.
        """
        return self._resolved(self._canonical(unsafe_path), self._judge.decide_directory)

    def file_or_directory(self, unsafe_path: str) -> Reached:
        """What a path leads to, unless a deny covers it: what else the policy says hangs on what it is.

        Raises:
            PathEscape, BadName, Refused: steps 1 to 4.
        """
        return self._resolved(self._canonical(unsafe_path), self._uncovered)

    def require(self, verb: Verb, reached: Reached) -> None:
        """Raise `Refused` unless the policy grants `verb` on the file."""
        for name in reached.names:
            _check(name, reached.written, partial(self._judge.decide, verb))

    def require_directory(self, reached: Reached) -> None:
        """Raise `Refused` unless the policy lets the directory be looked into."""
        for name in reached.names:
            _check(name, reached.written, self._judge.decide_directory)

    def allows(self, reached: Reached, verb: Verb) -> bool:
        """Whether the policy grants `verb` on the file, for filtering what is shown."""
        return all(self._judge.allows(verb, name) for name in reached.names)

    def covered(self, reached: Reached) -> bool:
        """Whether a deny on `list` covers the whole directory."""
        return any(map(self._judge.covered, reached.names))

    def links_below(self, reached: Reached) -> Iterator[Reached]:
        """Where the links beneath a directory lead, at any depth, those left out that lead nowhere here."""
        links = self._links.get(reached.path.scope, {})
        prefix = joined(reached.path.rel, "")
        for rel in links:
            if rel.startswith(prefix):
                link = CanonicalPath(reached.path.scope, rel)
                try:
                    resolved = resolve(link, links)
                except (PathEscape, Refusal):
                    continue
                yield Reached(reached.below(link).written, resolved.path, resolved.is_directory)

    def _canonical(self, unsafe_path: str) -> CanonicalPath:
        return canonicalise(unsafe_path.removesuffix("/") or unsafe_path, self._scopes)

    def _resolved(self, written: CanonicalPath, decide: Callable[[CanonicalPath], Verdict]) -> Reached:
        """Steps 2 to 4."""
        _check(written, written, decide)
        resolved = resolve(written, self._links.get(written.scope, {}))
        if resolved.path != written:
            _check(resolved.path, written, decide)
        return Reached(written, resolved.path, resolved.is_directory)

    def _one_of(self, verbs: Collection[Verb], path: CanonicalPath) -> Verdict:
        """`Allow` if one of `verbs` is granted, else why the last of them is not."""
        *others, last = verbs
        if any(self._judge.allows(verb, path) for verb in others):
            return Allow()
        return self._judge.decide(last, path)

    def _uncovered(self, path: CanonicalPath) -> Verdict:
        return self._judge.decide_directory(path) if self._judge.covered(path) else Allow()


def _check(name: CanonicalPath, written: CanonicalPath, decide: Callable[[CanonicalPath], Verdict]) -> None:
    verdict = decide(name)
    if isinstance(verdict, Deny):
        linked = f"{written.text} meets a link, and the rule {verdict.rule!r} forbids this of its target"
        reason = verdict.reason if name == written else f"{linked}; use another name"
        raise Refused(reason, rule=verdict.rule, layer=verdict.layer)
