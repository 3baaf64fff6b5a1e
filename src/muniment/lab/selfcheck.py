"""Check each guarantee of the kernel in a throwaway directory: `python -m muniment.lab.selfcheck`.

For reviewers who want to see the guarantees on their machine after reading the code. It opens only a
temporary directory, which it removes. Exit code 0: every check passed.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import Mock

from muniment.kernel.binding import bind
from muniment.kernel.cancel import Patience
from muniment.kernel.change import ChangeSet, FileChange, IndexFile, Judged, Standing, digest
from muniment.kernel.decide import Layer, Policy, Quota, Rule, ScopeTerms
from muniment.kernel.judge import judge, look, with_before
from muniment.kernel.land import LockedRoots, generated, land, lock_roots
from muniment.kernel.names import RelPath, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.kernel.refusal import MunimentError
from muniment.kernel.write import Intent, Writing, new_token, recover

NOTES = Scope("notes")
FILES = {"secret": b"secret", "notes/a.md": b"a", "notes/kept/old.md": b"kept"}
HOSTILE = ("../secret", "/etc/passwd", "notes/../../secret", "notes/a\0.md", "C:\\a.md", "notes/%2e%2e/a.md")
ALL = Rule("all", (Verb.CREATE, Verb.MODIFY), ("/**",))
KEPT = Rule("kept", (Verb.CREATE, Verb.MODIFY, Verb.DELETE), ("/notes/kept/**",))
SCOPES, LAYERS = (ScopeTerms(NOTES, Trust.OWNER),), (Layer("selfcheck", (ALL,), (KEPT,)),)
RULES = Policy("selfcheck", SCOPES, LAYERS, (Quota("all", ("/**",)),))


def at(rel: str) -> CanonicalPath:
    """Return a path of the root."""
    return CanonicalPath(NOTES, RelPath(rel))


def change(rel: str, after: bytes | None) -> FileChange:
    """Return a change of a file of `FILES`."""
    before = FILES.get(f"notes/{rel}")
    return FileChange(at(rel), None if before is None else digest(before), after)


@contextmanager
def locked(base: Path) -> Iterator[LockedRoots]:
    """Bind and lock the root; yield the locked roots."""
    patience = Patience(time.monotonic() + 10)
    with bind(NOTES, base / "notes") as root, lock_roots([root], patience) as held:
        yield held


def written(base: Path, *changes: FileChange, is_failing: bool = False) -> None:
    """Judge changes and write them; optionally fail after the files are written."""
    ports = Mock(
        **{"alike.return_value": frozenset(), "usage.return_value": (0, 0), "knows.return_value": False}
    )
    ports.unfinished.side_effect = lambda _: [Intent(1, ports.begin.call_args.args[1], {}, ())]
    with locked(base) as held:
        found = look([ChangeSet(changes)], held, Patience(time.monotonic() + 10))
        met = with_before(ChangeSet(changes), found)
        judged = judge(met, RULES, held, gates=lambda _: None, facts=ports, known=ports.knows)
        with Writing(judged, held, ports, ports) as writing:
            writing.land()
            if is_failing:
                raise OSError
            writing.finish(())


def refused(act: Callable[[], object]) -> bool:
    """Return whether a call is rejected."""
    try:
        act()
    except (MunimentError, TypeError, ValueError, OSError):
        return True
    return False


def text_leads_nowhere(_: Path) -> bool:
    """Check that text becomes a path of a declared scope or is rejected, and no other path can be created."""
    forged = ("../secret", "/etc", "a//b", "a\0")
    parsed = [refused(partial(canonicalise, text, {NOTES})) for text in HOSTILE]
    return all(parsed) and all(refused(partial(at, rel)) for rel in forged)


def nothing_is_followed(base: Path) -> bool:
    """Check that no link, second name or special file is opened."""
    notes, secret = base / "notes", base / "secret"
    (notes / "link.md").symlink_to(secret)
    (notes / "dir").symlink_to(base)
    (notes / "hard.md").hardlink_to(secret)
    os.mkfifo(notes / "pipe.md")
    names = ("link.md", "dir/secret", "hard.md", "pipe.md")
    with locked(base) as held:
        return all(refused(partial(held[NOTES].root.read_bytes, at(rel))) for rel in names)


def nothing_unjudged_lands(base: Path) -> bool:
    """Check that only judged changes and index files are written, and denied changes are rejected."""
    forged: tuple[Callable[[], object], ...] = (
        lambda: Judged(object(), ChangeSet(), {}),
        lambda: generated([IndexFile(at("a.md"), Standing.ABSENT, b"forged")]),
    )
    stale = FileChange(at("a.md"), digest(b"never so"), b"new")
    kept = (change("kept/old.md", b"new"), change("kept/old.md", None), change("kept/new.md", b"new"))
    with locked(base) as held:
        unsealed = refused(partial(land, Mock(), held, str))
    asked = [refused(partial(written, base, each)) for each in (*kept, stale)]
    return unsealed and all(asked) and all(map(refused, forged))


def all_of_it_or_none(base: Path) -> bool:
    """Check that a failed commit changes nothing, and a finished commit is complete."""
    changes = change("a.md", b"changed"), change("d/b.md", b"new")
    is_none = refused(partial(written, base, *changes, is_failing=True)) and files(base) == FILES
    written(base, *changes)
    return is_none and files(base) == {**FILES, "notes/a.md": b"changed", "notes/d/b.md": b"new"}


def a_journal_brings_back_only_what_was_there(base: Path) -> bool:
    """Check that recovery restores only bytes in its journal, and only to paths that allow writes."""
    lies = [FileChange(at(rel), None, FILES[f"notes/{rel}"], b"forged") for rel in ("a.md", "kept/old.md")]
    intents = [Intent(number, new_token(), {0: lie}, ()) for number, lie in enumerate(lies)]
    ports = Mock(**{"unfinished.return_value": intents})
    ports.knows = lambda path, _: path == at("kept/old.md")
    with locked(base) as held, recover(held, ports, RULES, ports) as done:
        pass
    return all(each.left for each in done) and files(base) == FILES


def files(base: Path) -> Mapping[str, bytes]:
    """Return the content of every file below a directory."""
    return {str(path.relative_to(base)): path.read_bytes() for path in base.rglob("*") if path.is_file()}


PROMISES = (
    text_leads_nowhere,
    nothing_is_followed,
    nothing_unjudged_lands,
    all_of_it_or_none,
    a_journal_brings_back_only_what_was_there,
)


def main() -> int:
    """Run every check; return 0 if all passed."""
    broken = 0
    for promise in PROMISES:
        with tempfile.TemporaryDirectory() as base:
            for name, content in FILES.items():
                path = Path(base, name)
                path.parent.mkdir(mode=0o700, exist_ok=True)
                path.write_bytes(content)
            is_kept = promise(Path(base))
        broken += not is_kept
        sys.stdout.write(f"{'passed' if is_kept else 'FAILED'}  {promise.__doc__}\n")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
