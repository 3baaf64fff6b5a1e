"""The state directory: two databases and a key, opened, versioned and migrated.

    ledger.db    the source of truth: commits, their origin, reason and author; WAL, `synchronous=FULL`
    catalog.db   derived rows about entries; `synchronous=NORMAL`; may be deleted at any time
    audit.key    32 random bytes: key of the audit chain and of every digest of a fact in the ledger
    ledger.db-series   empty; reveals that the ledger was restored from a copy, see `settle`

All files are 0600, in a directory that only the user can write. `State` guarantees:

- S1 The ledger has the version of this code. An older one was copied to a sibling file before the migration;
  a newer one is rejected before any of it is opened for writing.
- S2 Threads may share a `State`: one transaction at a time. Processes may share the directory; they open it
  one after the other.
- S3 The key is the one that the ledger was begun with, as far as this can be checked: it is created before
  the ledger, and never if a ledger exists.
- S4 Both databases have exactly the schema that this code creates (`schema.py`). A catalog with another
  schema is replaced by an empty one; a ledger with another schema is rejected.

Not guaranteed: anything against another process of the same user, which may edit all of this; `audit.py`
detects that. The directory must be on a local file system. If a newer version migrates the directory, a
running process of an older version fails; stop it first.

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
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple, Protocol, Self

from muniment.errors import ManagedMemoryUnavailable, StateTooNew, printable
from muniment.files import PRIVATE, placing, sync
from muniment.kernel.syscalls import fcntl, os
from muniment.policy.ownership import create_private_directory
from muniment.store import database
from muniment.store.database import (
    BUSY_SECONDS,
    Database,
    Ledger,
    delete,
    is_corrupt,
    make_private,
    migrations,
    reporting,
    statements,
    unavailable,
)
from muniment.store.rows import Embedder
from muniment.store.schema import has_schema, require_schema
from muniment.store.table import Table

# -- small files ---------------------------------------------------------------------------------------
#
# Writes a small file of the state directory atomically: complete and on disk, or not at all.
#
# If several processes create a file that must not be replaced, exactly one succeeds; otherwise see
# `files.placing`.


def put(path: Path, content: bytes, *, over: bool) -> None:
    """Write a file.

    Args:
        path: its name.
        content: all of it.
        over: replace an existing file.

    Raises:
        FileExistsError: the name exists, and must not be replaced.
        OSError: the system denies it. Nothing is changed or left.

    Cost: two syncs and a listing of the directory, a few milliseconds.
    """
    with placing(path, os.replace if over else os.link) as file:
        file.write(content)
    for begins in ("", "."):
        for left_over in path.parent.glob(f"{begins}{path.name}.*unfinished"):  # Left by processes that died.
            left_over.unlink(missing_ok=True)
    sync(path.parent)


# -- index files -------------------------------------------------------------------------------------


class IndexedFile(NamedTuple):
    """An index file that was written, or was about to be written."""

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

SUFFIX: Final = "-series"
"""Suffix of the file next to the ledger."""

_EPOCH_BYTES: Final = 4


def settle(path: Path, ledger: Ledger) -> None:
    """Begin a new series of events, unless the file next to the ledger is the one that the ledger recorded.

    The caller ensures that no other process opens the ledger meanwhile.

    Raises:
        ManagedMemoryUnavailable: the ledger or its directory cannot be written.

    Cost: one query.
    """
    mark = path.with_name(path.name + SUFFIX)
    with reporting(mark):
        found = _changed_at(mark)
    ((known,),) = ledger.rows("SELECT marked FROM series")
    if known is not None and known == found:
        return
    with reporting(mark):
        mark.unlink(missing_ok=True)
        make_private(mark)
        found = _changed_at(mark)
    with ledger.transaction() as connection:
        connection.execute(
            "UPDATE series SET epoch = ?, marked = ?", (secrets.token_hex(_EPOCH_BYTES), found)
        )


def _changed_at(path: Path) -> int | None:
    """Return the time of the last status change, in nanoseconds since 1970; None if the file is missing."""
    try:
        return path.lstat().st_ctime_ns
    except FileNotFoundError:
        return None


# -- state -------------------------------------------------------------------------------------------

__all__ = ["Database", "State", "is_corrupt", "open_catalog", "open_ledger"]

LEDGER_NAME: Final = "ledger.db"
CATALOG_NAME: Final = "catalog.db"
KEY_NAME: Final = "audit.key"
KEY_BYTES: Final = 32

LEDGER_VERSION: Final = 8
"""Number of files in `migrations/`: each migrates from the version before to its own number."""

CATALOG_VERSION: Final = 10
"""Version of `catalog.sql`: a catalog of another version is deleted, not migrated."""

CATALOG_CACHE_KIB: Final = 32_000
"""Maximum KiB of the catalog in memory: the pages that searches of a large catalog read repeatedly."""

_MAGIC: Final = b"SQLite format 3\0"
_VERSION_AT: Final = 60
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_COPY: Final = re.compile(rf"{re.escape(LEDGER_NAME)}\.version-[0-9]+(\.unfinished)?")
_BLOCK_BYTES: Final = 1 << 20
_PAUSE: Final = 0.01
"""Seconds between two attempts to lock the directory."""

_READ_ONLY: Final = "cannot be written, so the memory can only be read; make it writable first"

_MAX_COPIES: Final = 5
"""Maximum attempts to copy a database without a concurrent write."""


class Closable(Protocol):
    """A resource that a state closes."""

    def close(self) -> None:
        """Release its resources."""


class LedgerState:
    """A ledger and its key: enough to accept, report and record a task.

    Attributes:
        ledger: the source of truth.
    """

    def __init__(self, ledger: Ledger, key: bytes) -> None:
        self.ledger, self._key = ledger, key

    def mac(self, *parts: bytes) -> bytes:
        """Return the HMAC-SHA-256 of `parts`, each preceded by its length, with the ledger's key."""
        message = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self._key, message, hashlib.sha256)

    def keyed(self, text: str) -> str:
        """Return a digest of `text` that reveals nothing without the key: 64 hexadecimal digits."""
        return self.mac(b"text", text.encode()).hex()


@dataclass(slots=True)
class CopyPosition:
    """The position of a working copy in the ledger that machines share.

    Attributes:
        number: of the last commit whose files it has.
        erased: number of erasures until then.
        files: number of entries in the ledger then.
    """

    number: int
    erased: int
    files: int


class Shared(NamedTuple):
    """A ledger that other machines also use, instead of one in the state directory.

    Attributes:
        ledger: the source of truth; the caller closes it.
        key: the same on every machine; replaces the content of `KEY_NAME`.
        base: the directory that contains all roots; they are identified by their relative paths.
        position: of the working copy in `base`, updated by its owner; None: these files are not a copy.
    """

    ledger: Ledger
    key: bytes
    base: Path
    position: CopyPosition | None = None


def shared_root_key(state: LedgerState, name: str) -> str:
    """Return the key of a named root in a ledger that machines share: 32 hexadecimal digits."""
    return state.keyed(f"root {name}")[:32]


class State(LedgerState):
    """The open state directory. Close it, or use it in a `with` statement.

    Args:
        directory: created 0700 if it is missing. None: a private temporary one, removed on `close`.
        embedder: computes the vectors of entries; None: no vectors.
        shared: the ledger, if it is not in the directory, which then contains only the catalog.
        read_only: read a temporary copy of the directory, and never write to the original.

    Attributes:
        directory: its path.
        catalog: derived; only `store/catalog.py`, `store/visit.py` and the readers of its rows use it.
        root_keys: cached keys of roots of a ledger that machines share; by `name_of_root`.
        position: of the working copy that contains the roots; None: they are the memory itself.
        read_only_path: the directory that was copied; None if this is not such a copy.

    Raises:
        StateTooNew: a newer version of Muniment wrote it.
        ManagedMemoryUnavailable: it cannot be used, with the reason.
    """

    def __init__(
        self,
        directory: Path | None,
        *,
        embedder: Embedder | None = None,
        shared: Shared | None = None,
        read_only: bool = False,
    ) -> None:
        self.embedder, self._base = embedder, None if shared is None else os.path.realpath(shared.base)
        self.position = None if shared is None else shared.position
        self.read_only_path = directory if read_only else None
        is_temporary = directory is None or read_only
        self._temporary = TemporaryDirectory(prefix="muniment-state-") if is_temporary else None
        self.directory = Path(self._temporary.name) if self._temporary else Path(directory or "")
        self._lock, self._beside = threading.Lock(), dict[str, Closable]()
        self.root_keys = dict[bytes, str]()
        try:
            create_private_directory(self.directory)
            if self.read_only_path is not None:
                _copy_files(self.read_only_path, self.directory)
            with _alone(self.directory):
                super().__init__(*(self._opened() if shared is None else shared[:2]))
                try:
                    self.catalog = open_catalog(self.directory / CATALOG_NAME)
                except BaseException:
                    self.ledger.close()
                    raise
        except BaseException:
            self._remove()
            raise

    def _opened(self) -> tuple[Ledger, bytes]:
        """Return the ledger of the directory, and its key."""
        path = self.directory / LEDGER_NAME
        _refuse_newer(path)
        key, ledger = read_key(self.directory), open_ledger(path)
        try:
            settle(path, ledger)
        except BaseException:
            ledger.close()
            raise
        return ledger, key

    def require_writable(self) -> None:
        """Check that the state directory may be written.

        Raises:
            ManagedMemoryUnavailable: it is read-only; changes of this state are lost when it is closed.
        """
        if self.read_only_path is not None:
            raise unavailable(self.read_only_path, _READ_ONLY)

    def under(self, ledger: Ledger) -> State:
        """Return the same state with another connection to its ledger; it is closed with this one."""
        other = copy.copy(self)
        other.ledger = ledger
        return other

    @property
    def is_shared(self) -> bool:
        """Return whether other machines also use the ledger."""
        return self._base is not None

    def name_of_root(self, real: Path) -> bytes:
        """Return the ledger's name of a root: its real path, relative to the base of a shared ledger."""
        return os.fsencode(real if self._base is None else os.path.relpath(real, self._base))

    def key_of_root(self, name: bytes) -> str:
        """Return a new key for a named root: random, or the same on each machine if the ledger is shared."""
        return secrets.token_hex(16) if self._base is None else shared_root_key(self, os.fsdecode(name))

    def reads(self) -> Ledger:
        """Open the ledger for reading, without waiting for writers; close it after use.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be used.
        """
        if self._base is not None:
            return self.ledger
        return Database(self.directory / LEDGER_NAME, synchronous="FULL")

    def renew_catalog(self) -> None:
        """Delete the catalog and begin an empty one, which is allowed at any time.

        Raises:
            ManagedMemoryUnavailable: the directory cannot be written.
        """
        with _alone(self.directory):
            _begin_anew(self.catalog)

    def files(self) -> tuple[str, ...]:
        """Return the names of all files in the directory, sorted, also of foreign ones.

        Raises:
            ManagedMemoryUnavailable: the directory cannot be listed.
        """
        with reporting(self.directory):
            return tuple(sorted(each.name for each in self.directory.iterdir()))

    def copies(self) -> tuple[str, ...]:
        """Return the names of the copies that a migration created, finished or not."""
        return tuple(name for name in self.files() if _COPY.fullmatch(name))

    def remove_copies(self) -> None:
        """Delete the copies; after this, an older Muniment can no longer be used.

        Raises:
            ManagedMemoryUnavailable: they cannot be deleted.
        """
        with _alone(self.directory), reporting(self.directory):
            for name in self.copies():
                (self.directory / name).unlink()

    def blocks(self, name: str, overlap: int) -> Iterator[bytes]:
        """Yield the blocks of a file in the directory; each repeats the last `overlap` bytes before it.

        Raises:
            ManagedMemoryUnavailable: the file cannot be read.
        """
        with reporting(self.directory / name), database.reading(self.directory / name) as file:
            before = b""
            while block := file.read(_BLOCK_BYTES):
                yield before + block
                before = (before + block)[-overlap:]

    def beside(self, name: str, make: Callable[[], Closable]) -> Closable:
        """Return the resource that is cached under a name with this state; create it at its first use."""
        with self._lock:
            return self._beside.setdefault(name, make()) if name not in self._beside else self._beside[name]

    def close(self) -> None:
        """Close the cached resources and the databases; harmless when repeated."""
        while self._beside:
            self._beside.popitem()[1].close()
        self.catalog.close()
        self.ledger.close()
        self._remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _remove(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()


def open_ledger(
    path: Path, later: Sequence[str] = (), check: Callable[[Database], None] = lambda _: None
) -> Database:
    """Open the ledger and migrate it (S1, S4); no other process may open it meanwhile.

    Args:
        path: of the ledger.
        later: migrations in addition to those of `LEDGER_VERSION`.
        check: called after the schema was checked, before anything is changed.

    Raises:
        StateTooNew, ManagedMemoryUnavailable: as `State`.
    """
    newest = LEDGER_VERSION + len(later)
    database = Database(path, synchronous="FULL")
    try:
        database.rows("PRAGMA secure_delete = ON")  # Deleted data leaves no free page with its content.
        version = _version(database)
        # If a migration was killed at its very end, only the write-ahead log has the version.
        _refuse_above(newest, version, path)
        scripts = (*migrations(__package__).values(), *later)
        require_schema(database, scripts[:version])
        check(database)
        if version == newest:
            return database
        if version:
            _copy(database, path.with_name(f"{path.name}.version-{version}"))
        with database.transaction() as connection:
            connection.create_function("from_base64", 1, base64.b64decode)
            for script in scripts[version:]:
                for statement in statements(script):
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {newest}")
        database.drain()  # Now the version is at the offset that an older Muniment reads.
    except BaseException:
        database.close()
        raise
    return database


def open_catalog(path: Path) -> Database:
    """Open the catalog; replace it by an empty one if it has another version or is not a database.

    Raises:
        ManagedMemoryUnavailable: the directory cannot be used.
    """
    fresh = partial(Database, path, synchronous="NORMAL", cache_kib=CATALOG_CACHE_KIB)
    try:
        catalog = fresh()
    except ManagedMemoryUnavailable as error:
        if not is_corrupt(error):
            raise
        delete(path)
        catalog = fresh()
    try:
        if not _is_current(catalog):
            _begin_anew(catalog)
    except BaseException:
        catalog.close()
        raise
    return catalog


@cache
def catalog_script() -> str:
    """Return the SQL that creates the tables of a catalog."""
    return files(__package__).joinpath("catalog.sql").read_text("utf-8")


def _begin_anew(catalog: Database) -> None:
    """Empty a catalog, but preserve the record of written index files if it is readable."""
    known: tuple[IndexedFile, ...] = ()
    with suppress(ManagedMemoryUnavailable):  # The catalog is damaged, or has no such table.
        known = WRITTEN.read(catalog)
    catalog.begin_anew(catalog_script(), CATALOG_VERSION)
    with catalog.transaction() as connection:
        PLANNED.insert(connection, known, "INSERT OR IGNORE")


def _is_current(database: Database) -> bool:
    """Return whether a catalog has the version and schema of this code (S4)."""
    try:
        return _version(database) == CATALOG_VERSION and has_schema(database, (catalog_script(),))
    except ManagedMemoryUnavailable as error:
        if not is_corrupt(error):
            raise
        return False


def _version(database: Database) -> int:
    return int(database.rows("PRAGMA user_version")[0][0])


def _refuse_newer(path: Path) -> None:
    """Reject a newer ledger by its header, before SQLite opens it and touches its companion files."""
    with reporting(path):
        try:
            with database.reading(path) as file:
                header = file.read(_VERSION_AT + 4)
        except FileNotFoundError:
            return
    if header.startswith(_MAGIC):
        _refuse_above(LEDGER_VERSION, int.from_bytes(header[_VERSION_AT:], "big"), path)


def _refuse_above(newest: int, version: int, path: Path) -> None:
    if version > newest:
        raise StateTooNew(printable(str(path)), version, newest)


def _copy_files(source: Path, target: Path) -> None:
    """Copy the databases and the key of a state directory that is only read.

    Raises:
        StateTooNew: as `State`.
        ManagedMemoryUnavailable: as `State`; or they cannot be read, or another process writes them
            continuously.

    Cost: proportional to the size of the files.
    """
    if not os.path.lexists(source / LEDGER_NAME):
        return
    with _alone(source):
        _refuse_newer(source / LEDGER_NAME)
        put(target / KEY_NAME, read_key(source), over=True)
        for name in (LEDGER_NAME, CATALOG_NAME):
            with reporting(source / name):
                _copy_unchanged(source / name, target)


def _copy_unchanged(path: Path, target: Path) -> None:
    """Copy a database with its write-ahead log, both from the same moment."""
    pair = [path, path.with_name(f"{path.name}-wal")]
    for each in pair:
        if each.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), each)
    for _ in range(_MAX_COPIES):
        before = [_size_and_time(each) for each in pair]
        for each, found in zip(pair, before, strict=True):
            if found is not None:
                with database.reading(each) as file, (target / each.name).open("wb") as copied:
                    while block := file.read(_BLOCK_BYTES):
                        copied.write(block)
                (target / each.name).chmod(PRIVATE)
        if before == [_size_and_time(each) for each in pair]:
            return
        delete(target / path.name)
    raise unavailable(path, "another process writes to it continuously; try again")


def _size_and_time(path: Path) -> tuple[int, int] | None:
    """Return the size of a file and when it was changed; None if it is missing."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns


def is_writable(directory: Path) -> bool:
    """Return whether this process may create files in a directory."""
    return os.access(directory, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def _copy(database: Database, path: Path) -> None:
    """Copy a database; an existing copy has the same version and stays."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    with reporting(path):
        if path.exists():
            return
        unfinished.unlink(missing_ok=True)
        make_private(unfinished)
        with database.bare() as connection, closing(sqlite3.connect(unfinished)) as kept:
            connection.backup(kept)
        unfinished.rename(path)
        sync(path.parent)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold the lock of the state directory, as `alone`.

    Raises:
        ManagedMemoryUnavailable: as `alone`, or other users can write to the directory.
    """
    with alone(directory) as fd:
        with reporting(directory):
            found = os.fstat(fd)
        if found.st_uid != os.geteuid():
            raise unavailable(directory, "belongs to another user; use your own directory")
        if found.st_mode & _OTHERS_MAY_WRITE:
            raise unavailable(directory, f"is writable by others; run: chmod 700 {printable(str(directory))}")
        yield


@contextmanager
def alone(directory: Path) -> Iterator[int]:
    """Hold the lock of a directory, and yield its descriptor; processes that replace its files take turns.

    Raises:
        ManagedMemoryUnavailable: it cannot be opened, or another process has held the lock for
            `BUSY_SECONDS`.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    with reporting(directory):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while not _locks(directory, fd):
            if time.monotonic() >= deadline:
                raise unavailable(directory, f"another process has locked it for {BUSY_SECONDS:.0f} s")
            time.sleep(_PAUSE)
        yield fd
    finally:
        os.close(fd)


def _locks(directory: Path, fd: int) -> bool:
    with reporting(directory):
        return try_lock(fd)


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Acquire the lock of an open file or directory; return False if another process has it.

    Args:
        fd: its descriptor.
        shared: acquire a shared lock, only to check whether another process has an exclusive one.

    Raises:
        OSError: the system denies it.
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_key(directory: Path) -> bytes:
    """Return the key of a state directory; create it at first use (S3).

    Raises:
        ManagedMemoryUnavailable: the key cannot be read or created, is not `KEY_BYTES` long, is readable by
            others, or is missing although a ledger exists.
    """
    path = directory / KEY_NAME
    with reporting(path):
        if not path.exists():
            if path.with_name(LEDGER_NAME).exists():
                reason = f"is missing, but {LEDGER_NAME} needs it; restore it from a backup"
                raise unavailable(path, reason)
            # Complete or not at all, and on disk before it signs anything.
            put(path, secrets.token_bytes(KEY_BYTES), over=False)
        with path.open("rb") as file:
            key = file.read(KEY_BYTES + 1)
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    if len(key) != KEY_BYTES:
        raise unavailable(path, f"has {len(key)} bytes instead of {KEY_BYTES}; restore it from a backup")
    if mode & ~PRIVATE:
        raise unavailable(path, f"is readable by others; run: chmod 600 {printable(str(path))}")
    return key
