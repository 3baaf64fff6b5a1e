"""Check each guarantee of the kernel in a throwaway directory: `python -m muniment.lab.selfcheck`.

For reviewers who want to see the guarantees on their machine after reading the code. The program opens only a
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

from muniment.kernel.apply import LockedRoots, apply_changes, lock_roots, seal_index_files
from muniment.kernel.binding import bind
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import ChangeSet, FileChange, IndexFile, JudgedChanges, Precondition, digest
from muniment.kernel.decide import Layer, Policy, Quota, Rule, ScopeOptions
from muniment.kernel.judge import fill_before, judge, read_current
from muniment.kernel.names import RelPath, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.kernel.refusal import MunimentError
from muniment.kernel.write import CommitWriter, Intent, new_token, recover

NOTES = Scope("notes")
FILES = {"secret": b"secret", "notes/a.md": b"a", "notes/kept/old.md": b"kept"}
HOSTILE = ("../secret", "/etc/passwd", "notes/../../secret", "notes/a\0.md", "C:\\a.md", "notes/%2e%2e/a.md")
ALL = Rule("all", (Verb.CREATE, Verb.MODIFY), ("/**",))
PROTECTED = Rule("kept", (Verb.CREATE, Verb.MODIFY, Verb.DELETE), ("/notes/kept/**",))
SCOPES, LAYERS = (ScopeOptions(NOTES, Trust.OWNER),), (Layer("selfcheck", (ALL,), (PROTECTED,)),)
RULES = Policy("selfcheck", SCOPES, LAYERS, (Quota("all", ("/**",)),))


def build_path(rel: str) -> CanonicalPath:
    """Return the path of a file in the root `notes`."""
    return CanonicalPath(NOTES, RelPath(rel))


def build_change(rel: str, after: bytes | None) -> FileChange:
    """Return a change that gives a file of the root `notes` the content `after`; None deletes the file."""
    before = FILES.get(f"notes/{rel}")
    return FileChange(build_path(rel), None if before is None else digest(before), after)


@contextmanager
def lock_root(base: Path) -> Iterator[LockedRoots]:
    """Bind and lock the root `notes` in `base`, and yield the locked roots."""
    deadline = Deadline(time.monotonic() + 10)
    with bind(NOTES, base / "notes") as root, lock_roots([root], deadline) as locked_roots:
        yield locked_roots


def write_changes(base: Path, *changes: FileChange, is_failing: bool = False) -> None:
    """Judge changes and write them. If `is_failing`, raise `OSError` after the files are written."""
    ports = Mock(
        **{
            "find_aliases.return_value": frozenset(),
            "usage.return_value": (0, 0),
            "is_known.return_value": False,
        }
    )
    ports.list_unfinished.side_effect = lambda _: [Intent(1, ports.begin.call_args.args[1], {}, ())]
    with lock_root(base) as locked_roots:
        found = read_current([ChangeSet(changes)], locked_roots, Deadline(time.monotonic() + 10))
        complete_changes = fill_before(ChangeSet(changes), found)
        judged = judge(
            complete_changes,
            RULES,
            locked_roots,
            gates=lambda _: None,
            root_info=ports,
            is_known=ports.is_known,
        )
        with CommitWriter(judged, locked_roots, ports, ports) as writing:
            writing.apply()
            if is_failing:
                raise OSError
            writing.finish(())


def is_rejected(call: Callable[[], object]) -> bool:
    """Return whether a call raises an error of Muniment, `TypeError`, `ValueError` or `OSError`."""
    try:
        call()
    except (MunimentError, TypeError, ValueError, OSError):
        return True
    return False


def check_path_parsing(_: Path) -> bool:
    """Check that only text that names a path in a declared scope becomes a path."""
    forged = ("../secret", "/etc", "a//b", "a\0")
    parsed = [is_rejected(partial(canonicalise, text, {NOTES})) for text in HOSTILE]
    return all(parsed) and all(is_rejected(partial(build_path, rel)) for rel in forged)


def check_links_rejected(base: Path) -> bool:
    """Check that symbolic links, hard links and special files are not opened."""
    notes, secret = base / "notes", base / "secret"
    (notes / "link.md").symlink_to(secret)
    (notes / "dir").symlink_to(base)
    (notes / "hard.md").hardlink_to(secret)
    os.mkfifo(notes / "pipe.md")
    names = ("link.md", "dir/secret", "hard.md", "pipe.md")
    with lock_root(base) as locked_roots:
        return all(
            is_rejected(partial(locked_roots[NOTES].root.read_bytes, build_path(rel))) for rel in names
        )


def check_only_judged_written(base: Path) -> bool:
    """Check that only judged changes and index files are written, and that denied changes are rejected."""
    forged: tuple[Callable[[], object], ...] = (
        lambda: JudgedChanges(object(), ChangeSet(), {}),
        lambda: seal_index_files([IndexFile(build_path("a.md"), Precondition.ABSENT, b"forged")]),
    )
    stale = FileChange(build_path("a.md"), digest(b"never so"), b"new")
    protected_changes = (
        build_change("kept/old.md", b"new"),
        build_change("kept/old.md", None),
        build_change("kept/new.md", b"new"),
    )
    with lock_root(base) as locked_roots:
        is_unsealed_rejected = is_rejected(partial(apply_changes, Mock(), locked_roots, str))
    rejections = [is_rejected(partial(write_changes, base, each)) for each in (*protected_changes, stale)]
    return is_unsealed_rejected and all(rejections) and all(map(is_rejected, forged))


def check_atomic_commit(base: Path) -> bool:
    """Check that a failed commit changes nothing, and that a finished commit is complete."""
    changes = build_change("a.md", b"changed"), build_change("d/b.md", b"new")
    is_unchanged = (
        is_rejected(partial(write_changes, base, *changes, is_failing=True)) and read_files(base) == FILES
    )
    write_changes(base, *changes)
    return is_unchanged and read_files(base) == {**FILES, "notes/a.md": b"changed", "notes/d/b.md": b"new"}


def check_recovery_journal(base: Path) -> bool:
    """Check that recovery restores only bytes from its journal, and only to paths that allow writes."""
    forged_changes = [
        FileChange(build_path(rel), None, FILES[f"notes/{rel}"], b"forged") for rel in ("a.md", "kept/old.md")
    ]
    intents = [Intent(number, new_token(), {0: lie}, ()) for number, lie in enumerate(forged_changes)]
    ports = Mock(**{"list_unfinished.return_value": intents})
    ports.is_known = lambda path, _: path == build_path("kept/old.md")
    with lock_root(base) as locked_roots, recover(locked_roots, ports, RULES, ports) as done:
        pass
    return all(each.skipped for each in done) and read_files(base) == FILES


def read_files(base: Path) -> Mapping[str, bytes]:
    """Return the content of every file under a directory, by its relative path."""
    return {str(path.relative_to(base)): path.read_bytes() for path in base.rglob("*") if path.is_file()}


CHECKS = (
    check_path_parsing,
    check_links_rejected,
    check_only_judged_written,
    check_atomic_commit,
    check_recovery_journal,
)


def main() -> int:
    """Run every check; return 0 if all passed, otherwise 1."""
    failures = 0
    for check in CHECKS:
        with tempfile.TemporaryDirectory() as base:
            for name, content in FILES.items():
                path = Path(base, name)
                path.parent.mkdir(mode=0o700, exist_ok=True)
                path.write_bytes(content)
            has_passed = check(Path(base))
        failures += not has_passed
        sys.stdout.write(f"{'passed' if has_passed else 'FAILED'}  {check.__doc__}\n")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
