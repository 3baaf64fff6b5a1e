"""The state directory: two databases and a key, opened, versioned and migrated.

    ledger.db    the source of truth: commits, their origin, reason and author; WAL, `synchronous=FULL`
    catalog.db   derived rows about entries; `synchronous=NORMAL`; may be deleted at any time
    audit.key    32 random bytes: key of the audit chain and of every digest of a fact in the ledger
    ledger.db-series   empty; shows whether the ledger was restored from a copy, see `check_series`

All files have mode 0600, in a directory that only the user can write. `State` guarantees:

- S1 The ledger has the version of this code. An older ledger is copied to a sibling file before it is
  migrated. A newer ledger is rejected before any of it is opened for writing.
- S2 Threads may share a `State`: one transaction at a time. Several processes may use the directory; they
  open it one after the other.
- S3 The key is the one with which the ledger was begun, as far as this can be checked: the key is created
  before the ledger, and never if a ledger exists.
- S4 Both databases have exactly the schema that this code creates (`schema.py`). A catalog with another
  schema is replaced by an empty one; a ledger with another schema is rejected.

Not guaranteed: anything against another process of the same user, which may edit all files; `audit.py`
detects that. The directory must be on a local file system. If a newer version migrates the directory, a
running process of an older version fails; stop that process first.

Source: sqlite.org/fileformat.html, 1.3 (offset of the version).
"""

from __future__ import annotations

import base64
import copy
import errno
import hashlib
import hmac
import re
import secrets
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple, Protocol, Self

from muniment.errors import ManagedMemoryUnavailable, StateTooNew, printable
from muniment.files import PRIVATE, read_package_text, sync_directory, write_atomically
from muniment.kernel.syscalls import fcntl, os
from muniment.policy.ownership import create_private_directory
from muniment.store import database
from muniment.store.database import (
    BUSY_SECONDS,
    CATALOG_NAME,
    LEDGER_NAME,
    Database,
    Ledger,
    build_unavailable_error,
    convert_errors,
    delete_database,
    ensure_private_file,
    is_corrupt,
    load_migrations,
    split_statements,
)
from muniment.store.rows import Embedder
from muniment.store.schema import has_schema, require_schema
from muniment.store.table import Table

# -- small files ---------------------------------------------------------------------------------------
#
# Writes a small file of the state directory atomically: complete and on disk, or not at all.
#
# If several processes create a file that must not be replaced, exactly one succeeds; otherwise see
# `files.write_atomically`.


def write_file(path: Path, content: bytes, *, replace: bool) -> None:
    """Write a file atomically: after an error or a crash, it is either complete or unchanged.

    Args:
        path: path of the file.
        content: the complete content.
        replace: whether an existing file may be replaced.

    Raises:
        FileExistsError: the file exists, and `replace` is False.
        OSError: the system denies it. Nothing is changed, and no temporary file is left.

    Cost: two syncs and a listing of the directory, a few milliseconds.
    """
    with write_atomically(path, os.replace if replace else os.link) as file:
        file.write(content)
    for begins in ("", "."):
        for left_over in path.parent.glob(f"{begins}{path.name}.*unfinished"):  # Left by processes that died.
            left_over.unlink(missing_ok=True)
    sync_directory(path.parent)


# -- index files -------------------------------------------------------------------------------------


class IndexedFile(NamedTuple):
    """An index file that was written, or was about to be written.

    Attributes:
        root: key of the root.
        rel: path of the file inside the scope.
        digest: digest of the content.
    """

    root: str
    rel: str
    digest: str


WRITTEN: Final = Table("written", IndexedFile)
PLANNED: Final = Table("planned", IndexedFile)


# -- series --------------------------------------------------------------------------------------------
#
# Detects a ledger that was restored from a copy: such a ledger would reuse numbers of events.
#
# An empty file is next to the ledger. The ledger stores when the status of this file last changed (ctime),
# which no program can set. If the file is missing or another one, the series of events gets a new epoch, and
# no cursor of the old epoch is valid. This happens after a restore that removed the ledger's companion files,
# or that replaced the directory.
#
# Not detected: if only the ledger was replaced, or a snapshot of the file system restored both. In that case
# remove the file. An unnecessary new epoch only makes followers read everything again.

SERIES_SUFFIX: Final = "-series"
"""Suffix of the empty file next to the ledger that reveals a restored ledger."""

_EPOCH_BYTES: Final = 4


def check_series(path: Path, ledger: Ledger) -> None:
    """Begin a new series of event numbers if the ledger was restored from a copy.

    This is the case if the file next to the ledger is missing, or is not the file that the ledger recorded.
    The caller ensures that no other process opens the ledger meanwhile.

    Args:
        path: path of the ledger.
        ledger: the open ledger.

    Raises:
        ManagedMemoryUnavailable: the ledger or its directory cannot be written.

    Cost: one query.
    """
    mark = path.with_name(path.name + SERIES_SUFFIX)
    with convert_errors(mark):
        found = _read_change_time(mark)
    ((known,),) = ledger.rows("SELECT marked FROM series")
    if known is not None and known == found:
        return
    with convert_errors(mark):
        mark.unlink(missing_ok=True)
        ensure_private_file(mark)
        found = _read_change_time(mark)
    with ledger.transaction() as connection:
        connection.execute(
            "UPDATE series SET epoch = ?, marked = ?", (secrets.token_hex(_EPOCH_BYTES), found)
        )


def _read_change_time(path: Path) -> int | None:
    """Return when the status of a file last changed, in nanoseconds since 1970; None if it is missing."""
    try:
        return path.lstat().st_ctime_ns
    except FileNotFoundError:
        return None


# -- state -------------------------------------------------------------------------------------------

__all__ = ["LEDGER_NAME", "Database", "State", "is_corrupt", "open_catalog", "open_ledger"]

KEY_NAME: Final = "audit.key"
KEY_BYTES: Final = 32

LEDGER_VERSION: Final = 8
"""Number of files in `migrations/`. Each migrates a ledger from the version before to the number of the file.
"""

CATALOG_VERSION: Final = 11
"""Version of `catalog.sql`. A catalog of another version is deleted, not migrated."""

CATALOG_CACHE_KIB: Final = 32_000
"""Maximum KiB of catalog pages in memory: searches of a large catalog read the same pages repeatedly."""

_MAGIC: Final = b"SQLite format 3\0"
_VERSION_OFFSET: Final = 60
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_COPY: Final = re.compile(rf"{re.escape(LEDGER_NAME)}\.version-[0-9]+(\.unfinished)?")
_BLOCK_BYTES: Final = 1 << 20
_PAUSE: Final = 0.01
"""Seconds between two attempts to lock the directory."""

_READ_ONLY: Final = "cannot be written, so the memory can only be read; make it writable first"

_MAX_COPIES: Final = 5
"""Maximum number of attempts to copy a database; an attempt fails if another process writes meanwhile."""


class Closable(Protocol):
    """A resource that is cached in a `State` and closed with it."""

    def close(self) -> None:
        """Release its resources."""


class LedgerState:
    """A ledger and its key: enough to accept, report and record a task.

    Attributes:
        ledger: the source of truth about commits, tasks and reviews.
    """

    def __init__(self, ledger: Ledger, key: bytes) -> None:
        self.ledger, self._key = ledger, key

    def mac(self, *parts: bytes) -> bytes:
        """Return the HMAC-SHA-256 of `parts`, keyed by the ledger's key.

        Before hashing, the length of each part is put in front of it.
        """
        message = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self._key, message, hashlib.sha256)

    def compute_keyed_digest(self, text: str) -> str:
        """Return a digest of `text`, 64 hexadecimal digits, that reveals nothing without the ledger's key."""
        return self.mac(b"text", text.encode()).hex()


@dataclass(slots=True)
class CopyPosition:
    """The position of a working copy: the last commit in the shared ledger whose files the working copy has.

    Attributes:
        number: number of that commit.
        erased: number of erasures in the ledger up to that commit.
        files: number of entries in the ledger at that commit.
    """

    number: int
    erased: int
    files: int


class SharedLedger(NamedTuple):
    """A ledger that several machines use, instead of one in the state directory.

    Attributes:
        ledger: the source of truth; the caller closes it.
        key: the same on every machine; used instead of the content of the file `KEY_NAME`.
        base: the directory that contains all roots. The ledger identifies a root by its path relative to
            `base`.
        position: position of the working copy in `base`, updated by its owner; None: `base` is not a working
            copy.
    """

    ledger: Ledger
    key: bytes
    base: Path
    position: CopyPosition | None = None


def compute_shared_root_key(state: LedgerState, name: str) -> str:
    """Return the key of a named root in a ledger that machines share: 32 hexadecimal digits."""
    return state.compute_keyed_digest(f"root {name}")[:32]


class State(LedgerState):
    """The open state directory. Close it, or use it in a `with` statement.

    Args:
        directory: created with mode 0700 if it is missing. None: a private temporary directory, removed on
            `close`.
        embedder: computes the vectors of entries; None: no vectors.
        shared: a ledger outside the directory, which then contains only the catalog. None: the ledger is in
            the directory.
        is_read_only: read a temporary copy of the directory, and never write to the original.

    Attributes:
        directory: path of the directory, or of the temporary one.
        catalog: derived rows; only `store/catalog.py`, `store/visit.py` and the readers of their rows use it.
        root_keys: cached keys of the roots of a shared ledger, by the name from `get_root_name`.
        position: position of the working copy that contains the roots; None: the roots are not a working
            copy.
        read_only_path: path of the directory that was copied because it is only read; None if it was not
            copied.

    Raises:
        StateTooNew: a newer version of Muniment wrote the directory.
        ManagedMemoryUnavailable: the directory cannot be used; the error contains the reason.
    """

    def __init__(
        self,
        directory: Path | None,
        *,
        embedder: Embedder | None = None,
        shared: SharedLedger | None = None,
        is_read_only: bool = False,
    ) -> None:
        self.embedder, self._base = embedder, None if shared is None else os.path.realpath(shared.base)
        self.position = None if shared is None else shared.position
        self.read_only_path = directory if is_read_only else None
        is_temporary = directory is None or is_read_only
        self._temporary = TemporaryDirectory(prefix="muniment-state-") if is_temporary else None
        self.directory = Path(self._temporary.name) if self._temporary else Path(directory or "")
        self._lock, self._resources = threading.Lock(), dict[str, Closable]()
        self.root_keys = dict[bytes, str]()
        try:
            create_private_directory(self.directory)
            if self.read_only_path is not None:
                _copy_files(self.read_only_path, self.directory)
            with _lock_private_directory(self.directory):
                super().__init__(*(self._open_ledger() if shared is None else shared[:2]))
                try:
                    self.catalog = open_catalog(self.directory / CATALOG_NAME)
                except BaseException:
                    self.ledger.close()
                    raise
        except BaseException:
            self._remove_temporary()
            raise

    def _open_ledger(self) -> tuple[Ledger, bytes]:
        """Open the ledger in the directory, and return it with its key."""
        path = self.directory / LEDGER_NAME
        _reject_newer_ledger(path)
        key, ledger = read_key(self.directory), open_ledger(path)
        try:
            check_series(path, ledger)
        except BaseException:
            ledger.close()
            raise
        return ledger, key

    def require_writable(self) -> None:
        """Check that changes of this state are permanent.

        Raises:
            ManagedMemoryUnavailable: the state is a temporary copy of a read-only directory; changes would be
                lost when it is closed.
        """
        if self.read_only_path is not None:
            raise build_unavailable_error(self.read_only_path, _READ_ONLY)

    def with_ledger(self, ledger: Ledger) -> State:
        """Return a `State` that uses another connection to the same ledger and shares everything else.

        Closing this state closes the returned one.
        """
        other = copy.copy(self)
        other.ledger = ledger
        return other

    @property
    def is_shared(self) -> bool:
        """Return whether other machines use the same ledger."""
        return self._base is not None

    def get_root_name(self, real: Path) -> bytes:
        """Return the ledger's name of a root: its real path; if the ledger is shared, relative to its base.

        Args:
            real: real path of the root.
        """
        return os.fsencode(real if self._base is None else os.path.relpath(real, self._base))

    def create_root_key(self, name: bytes) -> str:
        """Return a key for a new root: random, or computed from its name if the ledger is shared.

        So all machines that share a ledger use the same key.

        Args:
            name: name of the root, from `get_root_name`.
        """
        return (
            secrets.token_hex(16) if self._base is None else compute_shared_root_key(self, os.fsdecode(name))
        )

    def open_reader(self) -> Ledger:
        """Open the ledger for reading, without waiting for writers of this process. Close it after use.

        If the ledger is shared, this returns `ledger` itself.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be used.
        """
        if self._base is not None:
            return self.ledger
        return Database(self.directory / LEDGER_NAME, synchronous="FULL")

    def recreate_catalog(self) -> None:
        """Delete the catalog and create an empty one; always allowed, because a catalog can be rebuilt.

        Raises:
            ManagedMemoryUnavailable: the directory cannot be written.
        """
        with _lock_private_directory(self.directory):
            _recreate_catalog(self.catalog)

    def list_files(self) -> tuple[str, ...]:
        """Return the names of all files in the state directory, sorted; foreign files are included.

        Raises:
            ManagedMemoryUnavailable: the directory cannot be listed.
        """
        with convert_errors(self.directory):
            return tuple(sorted(each.name for each in self.directory.iterdir()))

    def list_copies(self) -> tuple[str, ...]:
        """Return the names of the copies of the ledger that migrations created, finished or not."""
        return tuple(name for name in self.list_files() if _COPY.fullmatch(name))

    def remove_copies(self) -> None:
        """Delete the copies of the ledger that migrations created.

        After this, an older Muniment cannot use the state directory.

        Raises:
            ManagedMemoryUnavailable: the copies cannot be deleted.
        """
        with _lock_private_directory(self.directory), convert_errors(self.directory):
            for name in self.list_copies():
                (self.directory / name).unlink()

    def read_blocks(self, name: str, overlap: int) -> Iterator[bytes]:
        """Yield a file of the directory in overlapping blocks, so that a search misses nothing.

        Args:
            name: name of the file.
            overlap: number of bytes at the end of a block that the next block repeats.

        Raises:
            ManagedMemoryUnavailable: the file cannot be read.
        """
        with convert_errors(self.directory / name), database.open_shared(self.directory / name) as file:
            before = b""
            while block := file.read(_BLOCK_BYTES):
                yield before + block
                before = (before + block)[-overlap:]

    def get_resource(self, name: str, make: Callable[[], Closable]) -> Closable:
        """Return the resource that this state caches under `name`; call `make` at its first use."""
        with self._lock:
            return (
                self._resources.setdefault(name, make())
                if name not in self._resources
                else self._resources[name]
            )

    def close(self) -> None:
        """Close the cached resources and the databases; more calls have no effect."""
        while self._resources:
            self._resources.popitem()[1].close()
        self.catalog.close()
        self.ledger.close()
        self._remove_temporary()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()


def open_ledger(
    path: Path, more_migrations: Sequence[str] = (), check: Callable[[Database], None] = lambda _: None
) -> Database:
    """Open a ledger, check its schema, and migrate it to the version of this code.

    No other process may open the ledger meanwhile.

    Args:
        path: path of the ledger.
        more_migrations: SQL scripts to run after the migrations up to `LEDGER_VERSION`.
        check: called after the schema was checked, before anything is changed; it may raise.

    Raises:
        StateTooNew, ManagedMemoryUnavailable: as `State`; or an error of `check`.
    """
    newest = LEDGER_VERSION + len(more_migrations)
    database = Database(path, synchronous="FULL")
    try:
        database.rows("PRAGMA secure_delete = ON")  # Deleted data leaves no free page with its content.
        version = _read_version(database)
        # If a migration was killed at its very end, only the write-ahead log has the version.
        _reject_newer_version(newest, version, path)
        scripts = (*load_migrations(__package__).values(), *more_migrations)
        require_schema(database, scripts[:version])
        check(database)
        if version == newest:
            return database
        if version:
            _copy_database(database, path.with_name(f"{path.name}.version-{version}"))
        with database.transaction() as connection:
            connection.create_function("from_base64", 1, base64.b64decode)
            for script in scripts[version:]:
                for statement in split_statements(script):
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {newest}")
        database.truncate_log()  # Now the version is at the offset that an older Muniment reads.
    except BaseException:
        database.close()
        raise
    return database


def open_catalog(path: Path) -> Database:
    """Open the catalog; replace it by an empty one if it has another version or schema, or is damaged.

    Raises:
        ManagedMemoryUnavailable: the directory cannot be used.
    """
    fresh = partial(Database, path, synchronous="NORMAL", cache_kib=CATALOG_CACHE_KIB)
    try:
        catalog = fresh()
    except ManagedMemoryUnavailable as error:
        if not is_corrupt(error):
            raise
        delete_database(path)
        catalog = fresh()
    try:
        if not _is_current(catalog):
            _recreate_catalog(catalog)
    except BaseException:
        catalog.close()
        raise
    return catalog


@cache
def read_catalog_script() -> str:
    """Return the SQL that creates the tables of a catalog."""
    return read_package_text(__package__, "catalog.sql")


def _recreate_catalog(catalog: Database) -> None:
    """Replace a catalog by an empty one; preserve the list of written index files if it is readable."""
    written_files: tuple[IndexedFile, ...] = ()
    with suppress(ManagedMemoryUnavailable):  # The catalog is damaged, or has no such table.
        written_files = WRITTEN.read(catalog)
    catalog.recreate(read_catalog_script(), CATALOG_VERSION)
    with catalog.transaction() as connection:
        PLANNED.insert(connection, written_files, "INSERT OR IGNORE")


def _is_current(database: Database) -> bool:
    """Return whether a catalog has the version and schema of this code."""
    try:
        return _read_version(database) == CATALOG_VERSION and has_schema(database, (read_catalog_script(),))
    except ManagedMemoryUnavailable as error:
        if not is_corrupt(error):
            raise
        return False


def _read_version(database: Database) -> int:
    return int(database.rows("PRAGMA user_version")[0][0])


def _reject_newer_ledger(path: Path) -> None:
    """Raise `StateTooNew` if a ledger is from a newer version.

    Read only the header of the file: opening it with SQLite would change its companion files.
    """
    with convert_errors(path):
        try:
            with database.open_shared(path) as file:
                header = file.read(_VERSION_OFFSET + 4)
        except FileNotFoundError:
            return
    if header.startswith(_MAGIC):
        _reject_newer_version(LEDGER_VERSION, int.from_bytes(header[_VERSION_OFFSET:], "big"), path)


def _reject_newer_version(newest: int, version: int, path: Path) -> None:
    if version > newest:
        raise StateTooNew(printable(str(path)), version, newest)


def _copy_files(source: Path, target: Path) -> None:
    """Copy the databases and the key of a state directory that must not be changed.

    Raises:
        StateTooNew: a newer version of Muniment wrote the directory.
        ManagedMemoryUnavailable: as `State`; or the files cannot be read, or another process writes them
            continuously.

    Cost: proportional to the size of the files.
    """
    if not os.path.lexists(source / LEDGER_NAME):
        return
    with _lock_private_directory(source):
        _reject_newer_ledger(source / LEDGER_NAME)
        write_file(target / KEY_NAME, read_key(source), replace=True)
        for name in (LEDGER_NAME, CATALOG_NAME):
            with convert_errors(source / name):
                _copy_unchanged(source / name, target)


def _copy_unchanged(path: Path, target: Path) -> None:
    """Copy a database and its write-ahead log as they were at the same moment.

    Args:
        path: path of the database.
        target: directory of the copies.
    """
    pair = [path, path.with_name(f"{path.name}-wal")]
    for each in pair:
        if each.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), each)
    for _ in range(_MAX_COPIES):
        before = [_read_size_and_time(each) for each in pair]
        for each, found in zip(pair, before, strict=True):
            if found is not None:
                with database.open_shared(each) as file, (target / each.name).open("wb") as copied:
                    while block := file.read(_BLOCK_BYTES):
                        copied.write(block)
                (target / each.name).chmod(PRIVATE)
        if before == [_read_size_and_time(each) for each in pair]:
            return
        delete_database(target / path.name)
    raise build_unavailable_error(path, "another process writes to it continuously; try again")


def _read_size_and_time(path: Path) -> tuple[int, int] | None:
    """Return the size of a file and the time of its last change; None if the file is missing."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns


def is_writable(directory: Path) -> bool:
    """Return whether this process may create files in a directory."""
    return os.access(directory, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def _copy_database(database: Database, path: Path) -> None:
    """Copy a database to `path`; do nothing if `path` exists, because it was copied from the same version."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    with convert_errors(path):
        if path.exists():
            return
        unfinished.unlink(missing_ok=True)
        ensure_private_file(unfinished)
        with (
            database.open_outside_transaction() as connection,
            closing(sqlite3.connect(unfinished)) as target,
        ):
            connection.backup(target)
        unfinished.rename(path)
        sync_directory(path.parent)


@contextmanager
def _lock_private_directory(directory: Path) -> Iterator[None]:
    """Acquire the lock of the state directory and check its permissions; release it when the block ends.

    Raises:
        ManagedMemoryUnavailable: as `lock_directory`; or the directory belongs to another user, or others can
            write to it.
    """
    with lock_directory(directory) as fd:
        with convert_errors(directory):
            found = os.fstat(fd)
        if found.st_uid != os.geteuid():
            raise build_unavailable_error(directory, "belongs to another user; use your own directory")
        if found.st_mode & _OTHERS_MAY_WRITE:
            raise build_unavailable_error(
                directory, f"is writable by others; run: chmod 700 {printable(str(directory))}"
            )
        yield


@contextmanager
def lock_directory(directory: Path) -> Iterator[int]:
    """Acquire the lock of a directory and yield its file descriptor; release the lock when the block ends.

    Processes that replace files of the directory take turns by this lock.

    Raises:
        ManagedMemoryUnavailable: the directory cannot be opened, or another process has held the lock for
            `BUSY_SECONDS`.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    with convert_errors(directory):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while not _try_lock_directory(directory, fd):
            if time.monotonic() >= deadline:
                raise build_unavailable_error(
                    directory, f"another process has locked it for {BUSY_SECONDS:.0f} s; try again"
                )
            time.sleep(_PAUSE)
        yield fd
    finally:
        os.close(fd)


def _try_lock_directory(directory: Path, fd: int) -> bool:
    with convert_errors(directory):
        return try_lock(fd)


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Acquire the lock of an open file or directory; return False if another process holds it.

    Args:
        fd: file descriptor.
        shared: acquire a shared lock; use this only to check whether another process holds an exclusive one.

    Raises:
        OSError: the system denies it.
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_key(directory: Path) -> bytes:
    """Return the key of a state directory; create the key at first use, unless a ledger exists.

    Raises:
        ManagedMemoryUnavailable: the key cannot be read or created, is not `KEY_BYTES` long, is readable by
            others, or is missing although a ledger exists.
    """
    path = directory / KEY_NAME
    with convert_errors(path):
        if not path.exists():
            if path.with_name(LEDGER_NAME).exists():
                reason = f"is missing, but {LEDGER_NAME} needs it; restore it from a backup"
                raise build_unavailable_error(path, reason)
            # Complete or not at all, and on disk before it signs anything.
            write_file(path, secrets.token_bytes(KEY_BYTES), replace=False)
        with path.open("rb") as file:
            key = file.read(KEY_BYTES + 1)
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    if len(key) != KEY_BYTES:
        raise build_unavailable_error(
            path, f"has {len(key)} bytes instead of {KEY_BYTES}; restore it from a backup"
        )
    if mode & ~PRIVATE:
        raise build_unavailable_error(path, f"is readable by others; run: chmod 600 {printable(str(path))}")
    return key
