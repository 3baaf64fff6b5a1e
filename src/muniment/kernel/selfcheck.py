"""Tries each promise of the kernel in a throwaway directory: `python -m muniment.kernel.selfcheck`.

For whoever has just read these files and wants to see them hold on the machine at hand. Standard library only;
it opens nothing but a temporary directory, which it removes. Exit code 0: every promise held.

Apart from the kernel, which it calls as any caller would.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from muniment.kernel.binding import BoundRoot, bind
from muniment.kernel.cancel import Patience
from muniment.kernel.change import ChangeSet, FileChange, IndexFile, Judged, Standing, digest
from muniment.kernel.commit import commit
from muniment.kernel.decide import Layer, Policy, Quota, Rule, ScopeTerms
from muniment.kernel.land import Landed, LockedRoots, generated, land, lock_roots
from muniment.kernel.names import Digest, RelPath, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.kernel.refusal import MunimentError
from muniment.kernel.write import Intent, Recovered, new_token, recover

SCOPE = Scope("notes")
RULES = Policy(
    "selfcheck",
    (ScopeTerms(SCOPE, Trust.OWNER),),
    (
        Layer(
            "selfcheck",
            (Rule("all", (Verb.CREATE, Verb.MODIFY, Verb.READ), ("/**",)),),
            (Rule("kept", (Verb.CREATE, Verb.MODIFY, Verb.DELETE), ("/notes/kept/**",)),),
        ),
    ),
    (Quota("all", ("/**",)),),
)
HOSTILE = ("../secret", "/etc/passwd", "notes/../../secret", "notes/a\0.md", "C:\\a.md", "notes/%2e%2e/a.md")


@dataclass
class Ground:
    """A root with a file, and a secret outside; also journal, facts and proposal of what is committed."""

    base: Path
    root: BoundRoot
    begun: dict[int, Intent] = field(default_factory=dict)
    parts: Sequence[ChangeSet] = ()
    fails: bool = False

    def at(self, rel: str) -> CanonicalPath:
        return CanonicalPath(SCOPE, RelPath(rel))

    def commit(self, *changes: FileChange) -> None:
        self.parts = (ChangeSet(changes),)
        commit(
            self,
            rules=RULES,
            roots={SCOPE: self.root},
            journal=self,
            gates=lambda _: None,
            facts=self,
            patience=patience(),
        )

    def change(self, rel: str, after: bytes | None) -> FileChange:
        before = self.base / "notes" / rel
        return FileChange(self.at(rel), digest(before.read_bytes()) if before.exists() else None, after)

    # What the kernel asks of a journal, of facts and of a proposal.

    def begin(self, judged: Judged, token: str) -> int:
        changes = dict(enumerate(judged.change_set.changes))
        self.begun[len(self.begun)] = Intent(len(self.begun), token, changes, ())
        return len(self.begun) - 1

    def finish(self, number: int, judged: Judged, notes: Sequence[str]) -> None:
        self.abandon(number, (SCOPE,))

    def abandon(self, number: int, scopes: Collection[Scope], recovered: Recovered | None = None) -> None:
        del self.begun[number]

    def unfinished(self, scopes: Collection[Scope]) -> Sequence[Intent]:
        return tuple(self.begun.values())

    def knows(self, path: CanonicalPath, of: Digest) -> bool:
        return False

    def names(self, directory: CanonicalPath) -> frozenset[str] | None:
        with suppress(MunimentError):
            return frozenset(each.name for each in self.root.root.list_directory(directory))
        return None

    def usage(self, scope: Scope, counts: Callable[[RelPath], bool] | None) -> tuple[int, int]:
        return 0, 0

    def is_index(self, content: bytes) -> bool:
        return False

    def recovered(self, done: Sequence[Recovered], held: LockedRoots) -> None:
        """Nothing is derived from these files."""

    def placed(self, held: LockedRoots) -> Sequence[ChangeSet] | None:
        return self.parts

    def completed(self, change: FileChange) -> FileChange:
        return change

    def accepted(self, judged: Judged) -> bool:
        return True

    def followed(self, held: LockedRoots, landed: Landed, token: str) -> Sequence[str]:
        if self.fails:
            raise OSError("the disk is full")
        return ()


def patience() -> Patience:
    return Patience(time.monotonic() + 10)


def refused(act: Callable[[], object], *errors: type[Exception]) -> bool:
    try:
        act()
    except errors or (MunimentError,):
        return True
    return False


def text_leads_nowhere(ground: Ground) -> bool:
    """Text becomes a path of a declared scope, or is refused; nobody else can make a path of it."""
    forged = (lambda rel=rel: ground.at(rel) for rel in ("../secret", "/etc", "a//b", "a\0"))
    asked = (lambda text=text: canonicalise(text, {SCOPE}) for text in HOSTILE)
    return all(map(refused, (*forged, *asked)))


def nothing_is_followed(ground: Ground) -> bool:
    """No link, second name or special file is opened."""
    inside, secret = ground.base / "notes", ground.base / "secret"
    (inside / "link.md").symlink_to(secret)
    (inside / "dir").symlink_to(ground.base)
    (inside / "hard.md").hardlink_to(secret)
    os.mkfifo(inside / "pipe.md")
    names = ("link.md", "dir/secret", "hard.md", "pipe.md")
    return all(refused(lambda rel=rel: ground.root.root.read_bytes(ground.at(rel))) for rel in names)


def nothing_unjudged_lands(ground: Ground) -> bool:
    """Only what `judge` allowed is landed, or a file at an index name; what rules forbid is refused."""
    forged: Sequence[Callable[[], object]] = (
        lambda: Judged(object(), ChangeSet(), {}),
        lambda: generated([IndexFile(ground.at("a.md"), Standing.ABSENT, b"forged")]),
        lambda: LockedRoots(object(), {}),
    )
    with lock_roots([ground.root], patience()) as held:
        unsealed = refused(lambda: land(ChangeSet(), held, str), TypeError)  # type: ignore[arg-type]
    denied = (
        ground.change("kept/old.md", b"changed"),
        ground.change("kept/old.md", None),
        ground.change("kept/new.md", b"new"),
        FileChange(ground.at("a.md"), digest(b"never so"), b"new"),
        FileChange(ground.at("a.md"), None, b"new"),
    )
    asked = (refused(lambda change=change: ground.commit(change)) for change in denied)
    return unsealed and all(refused(act, TypeError, ValueError) for act in forged) and all(asked)


def all_of_it_or_none(ground: Ground) -> bool:
    """A commit that fails half way leaves everything as it was, and one that ends is all there."""
    before, changes = look(ground.base), (ground.change("a.md", b"changed"), ground.change("d/b.md", b"new"))
    ground.fails = True
    is_none = refused(lambda: ground.commit(*changes), OSError) and look(ground.base) == before
    ground.fails, ground.begun = False, {}
    ground.commit(*changes)
    return is_none and look(ground.base) == {**before, "notes/a.md": b"changed", "notes/d/b.md": b"new"}


def a_journal_brings_back_no_more_than_was_there(ground: Ground) -> bool:
    """Recovery writes nothing that its journal does not know, and nothing where the rules let nobody write."""
    before = look(ground.base)
    lies = (FileChange(ground.at(rel), None, before[f"notes/{rel}"], b"forged") for rel in ("a.md", "kept/old.md"))
    ground.begun = {0: Intent(0, new_token(), dict(enumerate(lies)), ())}
    with lock_roots([ground.root], patience()) as held:
        (done,) = recover(held, ground, RULES, ground, lambda _: None)
    return len(done.left) == len(done.intent.changes) and look(ground.base) == before


def look(base: Path) -> Mapping[str, bytes]:
    """Every file below a directory."""
    return {str(path.relative_to(base)): path.read_bytes() for path in base.rglob("*") if path.is_file()}


PROMISES = (
    text_leads_nowhere,
    nothing_is_followed,
    nothing_unjudged_lands,
    all_of_it_or_none,
    a_journal_brings_back_no_more_than_was_there,
)


def main() -> int:
    """Try every promise; 0 if all held."""
    held = True
    for promise in PROMISES:
        with tempfile.TemporaryDirectory() as base:
            files = {"secret": b"secret", "notes/a.md": b"a", "notes/kept/old.md": b"kept"}
            for name, content in files.items():
                path = Path(base, name)
                path.parent.mkdir(mode=0o700, exist_ok=True)
                path.write_bytes(content)
            with bind(SCOPE, Path(base, "notes")) as root:
                is_kept = promise(Ground(Path(base), root))
            held = held and is_kept
            sys.stdout.write(f"{'held  ' if is_kept else 'BROKEN'} {promise.__doc__}\n")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
