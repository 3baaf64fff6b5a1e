"""Back up and restore a home: the memory, its ledger and its configuration, as they were at one moment.

A backup is a tar. Its last member is a manifest with the size and digest of every other member:

    home/…                `user/`, `projects/`, `policies/`, `projects.json` and `config.toml`
    outside/SCOPE/…       a root that `config.toml` binds outside the home
    state/ledger.db       a copy that SQLite makes while all roots are locked, so that it contains no partial
                          commit; and `state/audit.key`, which is required to verify the ledger
    muniment-backup.json  the manifest

K1 While the backup is written, no commit runs in any root. Every commit that was reported as done before is
   in the backup, complete.
K2 Only regular files are included. Links and special files are skipped and reported.
K3 Not included: keys of model servers, tokens of the daemon, models, and the catalog, which is rebuilt.

R1 Restore first reads the whole backup. Every member must be a regular file, occur once, stay inside its
   folder and match the manifest byte for byte. The files are written to a directory next to the home. The
   audit records of the ledger are verified there, and then one rename makes the directory the home. On any
   error nothing remains.
R2 The home must be missing or empty. Restore stops after `RESTORE_SECONDS`, regardless of the backup size.
R3 The ledger stores paths of directories. Restore replaces the old paths with those of the new home. A root
   outside the old home is restored to `restored/SCOPE` in the new home, and `config.toml` binds the scope to
   that path.
R4 The ledger contributes rows only, never code. If its schema is not one that a migration creates, it is
   rejected before any other statement runs on it (`store/schema.py`). So are rows that SQLite reports as
   damaged.

Not protected: the backup itself. It contains the ledger's key, so anyone who has the backup can read
everything and create another backup that verifies. Store a backup as carefully as the home.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import re
import shutil
import sqlite3
import stat
import tarfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from io import BufferedReader
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import IO, Any, BinaryIO, Final, Self

from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable, printable
from muniment.events import Progress, track_progress
from muniment.files import CREATE_FLAGS, LIST_FLAGS, PRIVATE, READ_FLAGS, open_descriptor, sync_directory
from muniment.kernel.apply import lock_roots
from muniment.kernel.binding import bind
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import Scope
from muniment.names import MAX_CONFIG_BYTES
from muniment.policy.ownership import create_private_directory
from muniment.store.audit import Head, read_copied_head, verify
from muniment.store.database import Database
from muniment.store.ledger import move_roots
from muniment.store.schema import check_rows
from muniment.store.state import KEY_NAME, LEDGER_NAME, State, open_ledger

FORMAT: Final = "muniment-backup/1"
MANIFEST: Final = "muniment-backup.json"
OUTSIDE_FOLDER: Final = "outside"
RESTORED_FOLDER: Final = "restored"
"""The folder of a restored home for roots that were outside the old home."""

RESTORE_SECONDS: Final = 1_800.0
"""Time limit of a restore in seconds, unless the caller sets another."""

MAX_FILES: Final = 200_000
MAX_MANIFEST_BYTES: Final = 268_435_456
MAX_LEVELS: Final = 64
MAX_NAME_BYTES: Final = 4_096
"""Limits of a restore: files, bytes of the manifest, levels of folders and bytes of a name.

The shipped policies allow 20 000 files per scope.
"""

SCRATCH_PREFIX: Final = ".muniment-copy-"
"""Prefix of the temporary directory with the copy of the ledger during a backup."""

MAX_HEADER_BYTES: Final = 16_384
"""Maximum number of bytes of the extra tar headers of one file, such as a long name."""

_HEADERS: Final = frozenset(
    {
        *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
        *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    }
)

_HOME_MEMBERS: Final = ("user", "projects", "projects.json", "policies", "config.toml")
_MEMORY: Final = "memory"
_VERSION_BYTES: Final = 4
_HEADER_BYTES: Final = 64
"""Bytes of a database header up to and including `user_version`, which is 0 if it is not a ledger."""

_BLOCK: Final = 1_048_576
_MEGABYTE: Final = 1_000_000


@dataclass(slots=True)
class BackupSummary:
    """The contents of a backup that was written or restored.

    Attributes:
        files: the number of files, without the manifest.
        size: the bytes of these files.
        head: the last audit record. Store it outside the backup to check later that the backup is the same.
        outside: the scopes whose roots were outside the home.
        notes: skipped files with the reasons, and changes to `config.toml` that the user must make.
    """

    files: int = 0
    size: int = 0
    head: Head | None = None
    outside: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)


# -- backup ------------------------------------------------------------------------------------------


def back_up(
    home: Path,
    state: State,
    outside: Mapping[str, Path],
    file: IO[bytes],
    *,
    scratch: Path,
    deadline: Deadline,
) -> BackupSummary:
    """Write a backup of a home. Commits wait until the backup is complete.

    Args:
        home: the directory of the home.
        state: the open state of the home.
        outside: the directories that `config.toml` binds, by scope. Directories inside the home are not added
            twice.
        file: an empty file that is open for writing.
        scratch: a directory for the temporary copy of the ledger.
        deadline: the time until which the backup waits for the locks of the roots. Its token cancels the
            backup at any time.

    Raises:
        ManagedMemoryUnavailable: a root or the state cannot be read or locked; the text states the reason.
        PathEscape: a root was moved meanwhile.
        DeadlineExceeded: another process did not release the lock of a root in time.
        Cancelled: the caller cancelled.
        OSError: the file cannot be written.

    Cost: reads every file once, while all roots are locked.
    """
    real = Path(os.path.realpath(home))
    outside_roots = {scope: path for scope, path in outside.items() if not _is_inside_home(path, real)}
    with TemporaryDirectory(dir=scratch, prefix=SCRATCH_PREFIX) as scratch_folder:
        copy = Path(scratch_folder) / LEDGER_NAME
        with _lock_and_copy(real, outside_roots, deadline, lambda: _copy_ledger(state, copy)) as roots:
            archive = _write_files(
                {
                    f"state/{KEY_NAME}": state.directory / KEY_NAME,
                    **{f"home/{name}": real / name for name in _HOME_MEMBERS},
                    **{f"{OUTSIDE_FOLDER}/{scope}": path for scope, path in outside_roots.items()},
                },
                copy,
                file,
                Deadline(math.inf, deadline.cancel),
            )
        with closing(sqlite3.connect(copy)) as ledger:
            end = read_copied_head(ledger)  # The live ledger may already have more records.
    manifest = {
        "format": FORMAT,
        "home": str(real),
        "roots": {name: os.path.realpath(path) for name, path in roots.items()},
        "files": archive.files,
    }
    done = archive.finish(manifest)
    done.head, done.outside = end, tuple(outside_roots)
    return done


def _write_files(trees: Mapping[str, Path], ledger: Path, file: IO[bytes], deadline: Deadline) -> _Archive:
    """Write all files of a backup, and return the archive, which is not finished.

    Args:
        trees: files and directories, by their names in the backup.
        ledger: the copy of the ledger.
        file: an empty file that is open for writing.
        deadline: ends the work.
    """
    total = 1 + sum(map(_count_files, trees.values()))
    with track_progress("backing up", unit="files", total=total) as progress:
        archive = _Archive(file, deadline, progress)
        archive.add_large(f"state/{LEDGER_NAME}", ledger)
        for name, path in trees.items():
            archive.add_tree(name, path)
    return archive


def _count_files(path: Path) -> int:
    """Return the number of files in a directory; 1 if the path is a file, 0 if it is missing."""
    return int(path.is_file()) or sum(len(files) for _, _, files in os.walk(os.path.realpath(path)))


def _is_inside_home(path: Path, real_home: Path) -> bool:
    """Return whether a bound root is inside the home, so that the backup of the home already includes it."""
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(real_home / top) for top in ("user", "projects"))


@contextmanager
def _lock_and_copy(
    home: Path, outside_roots: Mapping[str, Path], deadline: Deadline, copy: Callable[[], None]
) -> Iterator[Mapping[str, Path]]:
    """Lock all roots and copy the ledger, then yield the roots by their names in the backup.

    If a root is added before the copy is complete, the function locks and copies again.
    """
    while True:
        deadline.check()
        roots = _list_roots(home, outside_roots)
        with ExitStack() as stack:
            bound = [
                stack.enter_context(bind(Scope(f"root-{number}"), path))
                for number, path in enumerate(roots.values())
            ]
            stack.enter_context(lock_roots(bound, deadline))
            copy()
            if _list_roots(home, outside_roots) != roots:
                continue  # A project was added meanwhile and may have a commit.
            yield roots
            return


def _list_roots(home: Path, outside_roots: Mapping[str, Path]) -> dict[str, Path]:
    """Return the directories that commits write to, by their names in the backup."""
    home_roots = [home / "user", *sorted((home / "projects").glob(f"*/{_MEMORY}"))]
    found = {f"home/{each.relative_to(home)}": each for each in home_roots}
    found |= {f"{OUTSIDE_FOLDER}/{scope}": path for scope, path in outside_roots.items()}
    return {name: path for name, path in found.items() if path.is_dir()}


def _copy_ledger(state: State, path: Path) -> None:
    path.unlink(missing_ok=True)
    os.close(os.open(path, CREATE_FLAGS, PRIVATE))
    is_full = False
    source = Database(state.directory / LEDGER_NAME, synchronous="FULL")
    with (
        closing(source),
        source.open_outside_transaction() as connection,
        closing(sqlite3.connect(path)) as copy,
    ):
        try:
            connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as error:
            is_full = error.sqlite_errorcode == sqlite3.SQLITE_FULL
            if not is_full:
                raise
    if is_full:  # The disk of the copy is full; it may differ from the disk of the state.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _Archive:
    """A backup that is being written to a tar."""

    def __init__(self, file: IO[bytes], deadline: Deadline, progress: Progress) -> None:
        self._tar = tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115  see `finish`
        self._deadline, self._progress = deadline, progress
        self.files: dict[str, tuple[int, str]] = {}
        self._notes: list[str] = []

    def add_tree(self, name: str, path: Path) -> None:
        """Add a file, or a directory with its contents. Links and special files in it are skipped and noted.

        Args:
            name: the name in the backup.
            path: the file or directory; nothing is added if it is missing.
        """
        # The operator's own links, for example to another disk, are followed.
        path = Path(os.path.realpath(path))
        if path.is_dir():
            with open_descriptor(path, LIST_FLAGS) as fd:
                self._walk(name, fd, 0)
        elif path.exists():
            with os.fdopen(os.open(path, READ_FLAGS), "rb") as file:
                data = file.read()  # Read as a whole, as in `_add_regular_file`.
            self._add(name, io.BytesIO(data), len(data))

    def add_large(self, name: str, path: Path) -> None:
        """Add a file that may be too large for memory and that no other process writes.

        Args:
            name: the name in the backup.
            path: the file.
        """
        with os.fdopen(os.open(path, READ_FLAGS), "rb") as file:
            self._add(name, file, os.fstat(file.fileno()).st_size)

    def finish(self, manifest: Mapping[str, Any]) -> BackupSummary:
        """Write the manifest, close the archive and return its contents."""
        data = json.dumps(manifest, indent=1, sort_keys=True).encode()
        member = tarfile.TarInfo(MANIFEST)
        member.mode, member.size = 0o600, len(data)
        self._tar.addfile(member, io.BytesIO(data))
        self._tar.close()
        size = sum(size for size, _ in self.files.values())
        return BackupSummary(len(self.files), size, notes=self._notes)

    def _walk(self, parent: str, folder: int, level: int) -> None:
        for name in sorted(os.listdir(folder)):
            member_name = f"{parent}/{name}"
            try:
                mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode) and level < MAX_LEVELS - 3:
                    with open_descriptor(name, LIST_FLAGS, dir_fd=folder) as child:
                        self._walk(member_name, child, level + 1)
                elif stat.S_ISREG(mode):
                    self._add_regular_file(member_name, name, folder)
                else:
                    self._notes.append(
                        f"skipped {printable(member_name)}: not a regular file, or nested in too many folders"
                    )
            except FileNotFoundError:
                continue  # Deleted meanwhile by the user: no commit is running.
            except PermissionError as error:
                raise ManagedMemoryUnavailable(
                    printable(member_name), "permission denied for this user"
                ) from error

    def _add_regular_file(self, member_name: str, name: str, folder: int) -> None:
        with os.fdopen(os.open(name, READ_FLAGS, dir_fd=folder), "rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                data = file.read()  # Read as a whole: the user may write to the file meanwhile.
                self._add(member_name, io.BytesIO(data), len(data))
            else:
                self._notes.append(f"skipped {printable(member_name)}: the file has a second hard link")

    def _add(self, name: str, file: BufferedReader | io.BytesIO, size: int) -> None:
        member = tarfile.TarInfo(name)
        member.mode, member.size = 0o600, size
        self.files[name] = (size, hashlib.file_digest(file, "sha256").hexdigest())
        file.seek(0)
        self._tar.addfile(member, file)
        self._progress.done += 1
        self._deadline.check()


# -- restore -----------------------------------------------------------------------------------------


def restore(
    home: Path,
    file: BinaryIO,
    *,
    deadline: Deadline,
    check: Callable[[Path], object] = lambda _: None,
) -> BackupSummary:
    """Restore a home from a backup, after checking that the backup is complete and unchanged.

    Args:
        home: the directory of the new home; it must be missing or empty.
        file: a backup from an untrusted source.
        deadline: the time at which the restore stops.
        check: called with the restored directory before it becomes the home; raises `ConfigInvalid` if the
            home would not work.

    Raises:
        ConfigInvalid: the home is not empty, or the file is not a valid backup. The home is unchanged.
        StateTooNew: a newer version of Muniment wrote the backup. The home is unchanged.
        ManagedMemoryUnavailable: the disk cannot be written. The home is unchanged.
        DeadlineExceeded, Cancelled: the deadline passed. The home is unchanged.
    """
    _require_empty(home)
    real = Path(os.path.realpath(home))
    staging = real.with_name(f".{real.name}.{token_hex(4)}.restoring")
    create_private_directory(staging)
    try:
        with _translate_errors(real):
            manifest, done = _unpack(file, staging, deadline)
        with track_progress("checking the history"):
            _rebase_ledger(staging, real, manifest, done, deadline)
        with _translate_errors(real):
            _rebind_roots(staging, real, done, deadline)
            check(staging)
            os.sync()
            _require_empty(home)
            staging.rename(real)
            sync_directory(real.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return done


def _require_empty(home: Path) -> None:
    with suppress(FileNotFoundError, NotADirectoryError):
        if any(home.iterdir()):
            raise ConfigInvalid(
                f"{printable(str(home))} is not empty, and restore does not overwrite: "
                "move it, or set MUNIMENT_HOME to an empty directory"
            )


@contextmanager
def _translate_errors(home: Path) -> Iterator[None]:
    """Convert errors of the `with` block to Muniment errors.

    Raises:
        ConfigInvalid: the backup is invalid.
        ManagedMemoryUnavailable: the disk cannot be written.
    """
    try:
        yield
    except (tarfile.TarError, EOFError, ValueError, RecursionError) as error:
        raise ConfigInvalid(f"invalid or incomplete backup: {error}; nothing was restored") from error
    except OSError as error:
        reason = f"cannot be written ({error.strerror or error}); nothing was restored"
        raise ManagedMemoryUnavailable(printable(str(home)), reason) from error


class ShortHeader(tarfile.TarInfo):
    """A member of an untrusted tar whose headers have a limited size.

    Some Python versions need quadratic time to read a long header (CVE-2024-6232), and all versions read a
    header into memory.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parse one header block as `tarfile.TarInfo.frombuf` does.

        Raises:
            tarfile.ReadError: the header announces extra headers that are too large.
        """
        member = super().frombuf(buf, encoding, errors)
        if member.type in _HEADERS and member.size > MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header in the archive is larger than {MAX_HEADER_BYTES} bytes")
        return member


class _Member(ShortHeader):
    """A regular file in a backup, or a header of one. Reading any other kind of member raises an error."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parse one header block as `tarfile.TarInfo.frombuf` does.

        Raises:
            tarfile.ReadError: the member is not a regular file, or its headers are too large.
        """
        member = super().frombuf(buf, encoding, errors)
        if member.type not in {tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.XHDTYPE}:
            raise tarfile.ReadError(f"{printable(member.name)} is not a regular file")
        return member


def _unpack(file: BinaryIO, into: Path, deadline: Deadline) -> tuple[Mapping[str, Any], BackupSummary]:
    """Write every member of a backup below `into` and check it against the manifest.

    Returns:
        The manifest, in which each root has its path in the new home; and a summary.
    """
    found: dict[str, tuple[int, str]] = {}
    begin, end = file.tell(), file.seek(0, os.SEEK_END)
    file.seek(begin)
    with (
        track_progress("restoring", unit="MB", total=(end - begin) // _MEGABYTE) as progress,
        tarfile.open(fileobj=file, mode="r:", tarinfo=_Member) as archive,
    ):
        while (member := archive.next()) is not None and member.name != MANIFEST:
            source = None if member.issparse() else archive.extractfile(member)
            if source is None or len(found) >= MAX_FILES:
                raise ValueError(
                    f"{printable(member.name)} is not a regular file, or there are over {MAX_FILES} files"
                )
            deadline.check()
            if member.size > shutil.disk_usage(into).free:
                # Raised before the file fills a shared disk.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            found[member.name] = (member.size, _write_member(source, into, member.name, deadline))
            progress.done = (file.tell() - begin) // _MEGABYTE
        content = None if member is None else archive.extractfile(member)
        if member is None or content is None or member.size > MAX_MANIFEST_BYTES:
            raise ValueError("the manifest at the end is missing: the file is truncated")
        manifest = json.loads(content.read())
        if archive.next() is not None:
            raise ValueError("unexpected data after the manifest")
    done = BackupSummary(len(found), sum(size for size, _ in found.values()))
    return _check_manifest(manifest, found), done


def _check_manifest(manifest: Any, found: Mapping[str, tuple[int, str]]) -> Mapping[str, Any]:
    """Return the validated manifest, in which each root has its path in the new home.

    Args:
        manifest: the decoded JSON.
        found: the size and digest of each member that was read.

    Raises:
        ValueError: the manifest is invalid, or does not list exactly the members that were read.
    """
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(f"the manifest has an unknown format; expected {FORMAT}")
    files, roots = manifest.get("files"), manifest.get("roots")
    texts = [manifest.get("home"), *(roots.values() if isinstance(roots, dict) else [None])]
    is_valid = isinstance(files, dict) and all(isinstance(each, str) and os.fsencode(each) for each in texts)
    if not (is_valid and isinstance(files, dict) and isinstance(roots, dict)):
        raise ValueError("the manifest has no valid members `home`, `roots` and `files`")
    written = {name: list(each) for name, each in found.items()}  # As lists, because JSON has no tuples.
    if files != written:
        wrong = min(name for name in {*written, *files} if written.get(name) != files.get(name))
        raise ValueError(f"{printable(wrong)} does not match the manifest")
    if not {f"state/{LEDGER_NAME}", f"state/{KEY_NAME}"} <= set(found):
        raise ValueError("the ledger or its key is missing")
    return {
        "home": manifest["home"],
        "roots": {_resolve_member_path(f"{name}/x").parent: path for name, path in roots.items()},
    }


def _resolve_member_path(name: str) -> Path:
    """Return the path of a member of a backup, relative to the new home.

    Raises:
        ValueError: a backup never contains a member with this name.
    """
    parts = name.split("/")
    is_long = len(os.fsencode(name)) > MAX_NAME_BYTES or len(parts) > MAX_LEVELS
    match parts:
        case _ if is_long or "\0" in name or not {"", ".", ".."}.isdisjoint(parts):
            pass
        case ["home", ("config.toml" | "projects.json") as own]:
            return Path(own)
        case ["home", ("user" | "projects" | "policies") as top, _, *_]:
            return Path(top, *parts[2:])
        case ["outside", _, _, *_]:
            return Path(RESTORED_FOLDER, *parts[1:])
        case ["state", ("ledger.db" | "audit.key") as own]:
            return Path("state", own)
    raise ValueError(f"{printable(name)} is not the name of a file that a backup contains")


def _write_member(source: IO[bytes], into: Path, name: str, deadline: Deadline) -> str:
    """Write a member of a backup to a new file and return its digest.

    Raises:
        ValueError: the name occurs twice or is also a folder, or a backup never contains it.
    """
    digest, path = hashlib.sha256(), into / _resolve_member_path(name)
    try:
        create_private_directory(path.parent)
        fd = os.open(path, CREATE_FLAGS, PRIVATE)
    except (FileExistsError, IsADirectoryError, ManagedMemoryUnavailable) as error:
        if isinstance(error, ManagedMemoryUnavailable) and not _has_file_as_parent(path, into):
            raise
        raise ValueError(f"{printable(name)} occurs twice, or is also a folder") from None
    with os.fdopen(fd, "wb") as file:
        while block := source.read(_BLOCK):
            deadline.check()
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def _has_file_as_parent(path: Path, into: Path) -> bool:
    return any(each.is_file() for each in path.parents if each.is_relative_to(into))


def _rebase_ledger(
    staging: Path, home: Path, manifest: Mapping[str, Any], done: BackupSummary, deadline: Deadline
) -> None:
    """Check the ledger of a backup, and replace its paths with those of the new home.

    The schema must be one that a migration creates, and rows and audit records must be intact.

    Raises:
        ConfigInvalid: the ledger is empty, damaged or changed.
    """
    old = os.fsencode(manifest["home"])
    new_roots = {
        os.fsencode(path): os.fsencode(home / new_path) for new_path, path in manifest["roots"].items()
    }

    def rebase_path(path: bytes) -> bytes:
        is_inside = path.startswith(old + b"/")
        return new_roots.get(path, os.fsencode(home) + path[len(old) :] if is_inside else path)

    directory = staging / "state"
    with (directory / LEDGER_NAME).open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if not any(header[-_VERSION_BYTES:]):
        raise ConfigInvalid("the ledger of the backup is empty; nothing was restored")
    try:
        open_ledger(directory / LEDGER_NAME, check=partial(check_rows, deadline=deadline)).close()
        with State(directory) as state:
            state.ledger.limit_statements(deadline)
            found = verify(state)
            if found.problems:
                raise ConfigInvalid(
                    f"the records of the backup were changed: {found.problems[0]}; nothing was restored"
                )
            deadline.check()
            move_roots(state, rebase_path)
            done.head = found.head
    except ManagedMemoryUnavailable as error:
        deadline.check()  # SQLite reports the end of the deadline as an interrupt.
        raise ConfigInvalid(
            f"the ledger of the backup cannot be used: {error.reason}; nothing was restored"
        ) from error
    for created in [each for each in directory.iterdir() if each.name not in {LEDGER_NAME, KEY_NAME}]:
        # The checks created these files. Without them, a new series of events starts with the first use.
        created.unlink()


def _rebind_roots(staging: Path, home: Path, done: BackupSummary, deadline: Deadline) -> None:
    """Bind roots from outside the old home to their restored paths in `config.toml`.

    If `config.toml` cannot be changed safely, note the line that the user must add.
    """
    path, restored = staging / "config.toml", staging / RESTORED_FOLDER
    done.outside = tuple(sorted(each.name for each in restored.iterdir())) if restored.is_dir() else ()
    if path.exists() and path.stat().st_size > MAX_CONFIG_BYTES:
        raise ConfigInvalid(
            f"the config.toml of the backup is larger than {MAX_CONFIG_BYTES} bytes; nothing was restored"
        )
    for scope in done.outside:
        deadline.check()
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        config = tomllib.loads(text)
        new_path = str(home / RESTORED_FOLDER / scope)
        line = rf"(?m)((?:^|[\s{{,.])[\"']?{re.escape(scope)}[\"']?\s*=\s*)(?:\"[^\"\n]*\"|'[^'\n]*')"
        replacement = json.dumps(new_path, ensure_ascii=False).replace("\\", "\\\\")
        new_text = re.sub(line, rf"\g<1>{replacement}", text)
        bound = config.get("roots", {})
        if isinstance(bound, dict) and _parse_toml_or_none(new_text) == config | {
            "roots": bound | {scope: new_path}
        }:
            path.write_text(new_text, encoding="utf-8")
        else:
            done.notes.append(f"add to config.toml: [roots] {scope} = {json.dumps(new_path)}")


def _parse_toml_or_none(text: str) -> object:
    with suppress(tomllib.TOMLDecodeError):
        return tomllib.loads(text)
    return None
