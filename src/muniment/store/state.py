"""The state directory: two databases and a key, opened, versioned and migrated.

    ledger.db    the truth: what was committed, from what, why and by whom; WAL, `synchronous=FULL`
    catalog.db   derived rows about entries; `synchronous=NORMAL`; may be deleted at any time
    audit.key    32 random bytes: keys the chain of records and every digest of a fact in the ledger
    ledger.db-series   empty: by it a ledger is known that was put back from a copy, see `database.py`

All of it is 0600, in a directory that is the caller's alone. On success of `State`:

- S1 the ledger has the version of this code. An older one was copied beside itself before it was changed; a
  newer one is refused before anything of it is opened for writing.
- S2 threads may share a `State`: one transaction at a time. Processes may share the directory; they open it
  one after the other.
- S3 the key is the one that the ledger was begun with, as far as can be told: it is made before the ledger,
  and never where there is one.
- S4 both databases have the schema that this code makes and nothing else (`schema.py`): a catalog with
  another one is replaced by an empty one, a ledger with another one is rejected.

Does not hold: anything against another process of the same user, who may edit all of this; `audit.py` finds
that. The directory must be on a local file system. A process of an older version that has the directory open
while a newer one migrates it will fail; stop it first.

Source: sqlite.org/fileformat.html, 1.3 (where the version stands).
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

# -- placing -----------------------------------------------------------------------------------------
#
# Puts a small file of the state directory into place: whole and on disk, or not at all.
#
# Of many who put a file where none is to be replaced, one does; all else is as `files.placing` has it.


def put(path: Path, content: bytes, *, over: bool) -> None:
    """Write a file.

    Args:
        path: its name.
        content: all of it.
        over: replace what stands there.

    Raises:
        FileExistsError: something stands there, and is not to be replaced.
        OSError: the system refuses. Nothing is changed or left.

    Cost: two syncs and a listing of the directory, some milliseconds.
    """
    with placing(path, os.replace if over else os.link) as file:
        file.write(content)
    for begins in ("", "."):
        for left_over in path.parent.glob(f"{begins}{path.name}.*unfinished"):  # By processes that died.
            left_over.unlink(missing_ok=True)
    sync(path.parent)


# -- index files -------------------------------------------------------------------------------------


class IndexedFile(NamedTuple):
    """An index file as it was written, or was about to be."""

    root: str
    rel: str
    digest: str


WRITTEN: Final = Table("written", IndexedFile)
PLANNED: Final = Table("planned", IndexedFile)


# -- series ------------------------------------------------------------------------------------------
#
# Tells a ledger that was put back from a copy: it gives numbers of events that it gave before.
#
# Beside the ledger stands an empty file, and the ledger knows when its status last changed (ctime), which
# no program can set. Where the file is missing or another one, by a restore that removed all that is beside
# the ledger, or one of the whole directory, the series of events gets a new epoch: no cursor of the old one
# counts.
#
# Does not hold where the ledger alone was replaced, or a snapshot of the file system brought back both:
# then remove the file too. To renew an epoch without need only makes followers look at everything again.

SUFFIX: Final = "-series"
"""What is added to the name of the ledger for the file beside it."""

_EPOCH_BYTES: Final = 4


def settle(path: Path, ledger: Ledger) -> None:
    """Begin a new series of events, unless the ledger at a path is the one that this file was made beside.

    No other process opens the ledger meanwhile.

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
    """Nanoseconds since 1970; None: there is no such file."""
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
"""How many files there are in `migrations/`: each leads from the version before to its own number."""

CATALOG_VERSION: Final = 10
"""Of `catalog.sql`: a catalog of another version is deleted, not migrated."""

CATALOG_CACHE_KIB: Final = 32_000
"""KiB of the catalog that are held in memory: what searches go through again and again in a large one."""

_MAGIC: Final = b"SQLite format 3\0"
_VERSION_AT: Final = 60
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_COPY: Final = re.compile(rf"{re.escape(LEDGER_NAME)}\.version-[0-9]+(\.unfinished)?")
_BLOCK_BYTES: Final = 1 << 20
_PAUSE: Final = 0.01
"""Seconds between two looks whether another process has done opening."""

_READ_ONLY: Final = "cannot be written, so the memory can only be read; make it writable first"

_MAX_COPIES: Final = 5
"""How often a database is copied until no process writes it meanwhile."""


class Closable(Protocol):
    """What a state closes."""

    def close(self) -> None:
        """Give back what it holds."""


class LedgerState:
    """A ledger and its key: all that is needed to accept a task, to tell of one, and to record it.

    Attributes:
        ledger: the truth.
    """

    def __init__(self, ledger: Ledger, key: bytes) -> None:
        self.ledger, self._key = ledger, key

    def mac(self, *parts: bytes) -> bytes:
        """HMAC-SHA-256 with the key of this ledger over `parts`, each with its length before it."""
        message = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self._key, message, hashlib.sha256)

    def keyed(self, text: str) -> str:
        """A digest of `text` that tells nothing to who lacks the key: 64 hexadecimal digits."""
        return self.mac(b"text", text.encode()).hex()


@dataclass(slots=True)
class CopyPosition:
    """How far a working copy follows the ledger that machines share.

    Attributes:
        number: of the last commit whose files it has.
        erased: how often something was erased until then.
        files: how many entries the ledger had then.
    """

    number: int
    erased: int
    files: int


class Shared(NamedTuple):
    """A ledger that other machines use too, in place of one in the state directory.

    Attributes:
        ledger: the truth; stays the caller's.
        key: what `KEY_NAME` holds elsewhere: the same on every machine.
        base: the directory that all roots lie in: they are known by their paths below it.
        position: of the working copy in `base`, which its owner keeps right; None: these files are no copy.
    """

    ledger: Ledger
    key: bytes
    base: Path
    position: CopyPosition | None = None


def shared_root_key(state: LedgerState, name: str) -> str:
    """The key of a root of a name in a ledger that machines share: 32 hexadecimal digits."""
    return state.keyed(f"root {name}")[:32]


class State(LedgerState):
    """The open state directory. Close it, or use it in a `with` statement.

    Args:
        directory: made 0700 if it is missing. None: a private temporary one, removed on `close`.
        embedder: makes the vectors of entries; None: there are none.
        shared: the ledger, where it is not in the directory: that holds the catalog alone.
        read_only: read a copy of the directory in a temporary one, and write nothing to it.

    Attributes:
        directory: where it is.
        catalog: derived; only `store/catalog.py`, `store/visit.py` and the readers of its rows use it.
        root_keys: of roots of a ledger that machines share, as far as it was asked; by `name_of_root`.
        position: of the working copy that the roots are; None: they are the memory itself.
        read_only_path: the directory that only a copy was made of; None: this is no such copy.

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
        """The ledger of the directory, and its key."""
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
        """Raise if the state directory is only read.

        Raises:
            ManagedMemoryUnavailable: it is; what is written to this state is lost when it is closed.
        """
        if self.read_only_path is not None:
            raise unavailable(self.read_only_path, _READ_ONLY)

    def under(self, ledger: Ledger) -> State:
        """The same state by another connection to its ledger; closed with this one."""
        other = copy.copy(self)
        other.ledger = ledger
        return other

    @property
    def is_shared(self) -> bool:
        """Whether other machines use the ledger too."""
        return self._base is not None

    def name_of_root(self, real: Path) -> bytes:
        """By which the ledger knows a root: its real path, or that below what all roots of a home lie in."""
        return os.fsencode(real if self._base is None else os.path.relpath(real, self._base))

    def key_of_root(self, name: bytes) -> str:
        """A key for a root of a name: random, or where machines share the ledger the same on each."""
        return secrets.token_hex(16) if self._base is None else shared_root_key(self, os.fsdecode(name))

    def reads(self) -> Ledger:
        """The ledger for who only reads, and so waits for no writer; close it when done.

        Raises:
            ManagedMemoryUnavailable: it cannot be used.
        """
        if self._base is not None:
            return self.ledger
        return Database(self.directory / LEDGER_NAME, synchronous="FULL")

    def renew_catalog(self) -> None:
        """Delete the catalog and begin an empty one, as it may be at any time.

        Raises:
            ManagedMemoryUnavailable: the directory cannot be written.
        """
        with _alone(self.directory):
            _begin_anew(self.catalog)

    def files(self) -> tuple[str, ...]:
        """The names of everything in the directory, sorted; also of what is not ours.

        Raises:
            ManagedMemoryUnavailable: it cannot be listed.
        """
        with reporting(self.directory):
            return tuple(sorted(each.name for each in self.directory.iterdir()))

    def copies(self) -> tuple[str, ...]:
        """Those of them that are copies which a migration made, finished or not."""
        return tuple(name for name in self.files() if _COPY.fullmatch(name))

    def remove_copies(self) -> None:
        """Delete the copies; an older Muniment cannot be gone back to then.

        Raises:
            ManagedMemoryUnavailable: they cannot be deleted.
        """
        with _alone(self.directory), reporting(self.directory):
            for name in self.copies():
                (self.directory / name).unlink()

    def blocks(self, name: str, overlap: int) -> Iterator[bytes]:
        """The bytes of a file in the directory; each block begins with the last `overlap` bytes before it.

        Raises:
            ManagedMemoryUnavailable: it cannot be read.
        """
        with reporting(self.directory / name), database.reading(self.directory / name) as file:
            before = b""
            while block := file.read(_BLOCK_BYTES):
                yield before + block
                before = (before + block)[-overlap:]

    def beside(self, name: str, make: Callable[[], Closable]) -> Closable:
        """What is kept open beside the databases under a name, made when it is first asked for."""
        with self._lock:
            return self._beside.setdefault(name, make()) if name not in self._beside else self._beside[name]

    def close(self) -> None:
        """Close what is beside the databases, and these; harmless when repeated."""
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
    """The ledger, at the version that migrations lead to (S1, S4); no other process may open it meanwhile.

    Args:
        path: of it.
        later: migrations besides those of `LEDGER_VERSION`.
        check: called once its schema is known to be ours, before anything is changed.

    Raises:
        StateTooNew, ManagedMemoryUnavailable: as `State`.
    """
    newest = LEDGER_VERSION + len(later)
    database = Database(path, synchronous="FULL")
    try:
        database.rows("PRAGMA secure_delete = ON")  # What is forgotten leaves no free page with it.
        version = _version(database)
        # It stands in the write-ahead log alone where a migration was killed at its very end.
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
        database.drain()  # From now on the version stands where an older Muniment looks for it.
    except BaseException:
        database.close()
        raise
    return database


def open_catalog(path: Path) -> Database:
    """The catalog; one of another version, or that is no database, is replaced by an empty one.

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
    """What makes the tables of a catalog."""
    return files(__package__).joinpath("catalog.sql").read_text("utf-8")


def _begin_anew(catalog: Database) -> None:
    """Make a catalog an empty one that still knows, where it can be told, which index files are ours."""
    known: tuple[IndexedFile, ...] = ()
    with suppress(ManagedMemoryUnavailable):  # It is damaged, or there is no such table.
        known = WRITTEN.read(catalog)
    catalog.begin_anew(catalog_script(), CATALOG_VERSION)
    with catalog.transaction() as connection:
        PLANNED.insert(connection, known, "INSERT OR IGNORE")


def _is_current(database: Database) -> bool:
    """Whether a catalog is one of this code, to its schema (S4)."""
    try:
        return _version(database) == CATALOG_VERSION and has_schema(database, (catalog_script(),))
    except ManagedMemoryUnavailable as error:
        if not is_corrupt(error):
            raise
        return False


def _version(database: Database) -> int:
    return int(database.rows("PRAGMA user_version")[0][0])


def _refuse_newer(path: Path) -> None:
    """Refuse a ledger by its header, before SQLite opens it and touches the files beside it."""
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
        ManagedMemoryUnavailable: as `State`; or they cannot be read, or another process writes them all the
            time.

    Cost: as much as there is to copy.
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
    """Copy a database with its write-ahead log as they are at one moment."""
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
    raise unavailable(path, "another process writes it all the time; try again")


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
    """Copy a database as it is now; a copy that is there already is of the same version and stays."""
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
        ManagedMemoryUnavailable: as `alone`, or the directory is not the caller's alone.
    """
    with alone(directory) as fd:
        with reporting(directory):
            found = os.fstat(fd)
        if found.st_uid != os.geteuid():
            raise unavailable(directory, "belongs to another user; use a directory of your own")
        if found.st_mode & _OTHERS_MAY_WRITE:
            raise unavailable(
                directory, f"may be written by others; run: chmod 700 {printable(str(directory))}"
            )
        yield


@contextmanager
def alone(directory: Path) -> Iterator[int]:
    """Hold the lock of a directory, as a descriptor: who replaces files of it does so one after the other.

    Raises:
        ManagedMemoryUnavailable: it cannot be opened, or another process has had the lock for `BUSY_SECONDS`.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    with reporting(directory):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while not _locks(directory, fd):
            if time.monotonic() >= deadline:
                raise unavailable(directory, f"another process has kept it locked for {BUSY_SECONDS:.0f} s")
            time.sleep(_PAUSE)
        yield fd
    finally:
        os.close(fd)


def _locks(directory: Path, fd: int) -> bool:
    with reporting(directory):
        return try_lock(fd)


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Take the lock of an open file or directory, until it is closed; False: somebody else has it.

    Args:
        fd: it.
        shared: only to see whether one has it to himself.

    Raises:
        OSError: the system refuses.
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_key(directory: Path) -> bytes:
    """The key of a state directory, made at first use (S3).

    Raises:
        ManagedMemoryUnavailable: it cannot be read or made, is not `KEY_BYTES` long, others may read it, or
            it is missing beside a ledger.
    """
    path = directory / KEY_NAME
    with reporting(path):
        if not path.exists():
            if path.with_name(LEDGER_NAME).exists():
                reason = f"is missing, and the {LEDGER_NAME} beside it needs it; bring it back from a backup"
                raise unavailable(path, reason)
            # Whole or not at all, on disk before anything is signed with it.
            put(path, secrets.token_bytes(KEY_BYTES), over=False)
        with path.open("rb") as file:
            key = file.read(KEY_BYTES + 1)
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    if len(key) != KEY_BYTES:
        raise unavailable(path, f"holds {len(key)} bytes instead of {KEY_BYTES}; bring it back from a backup")
    if mode & ~PRIVATE:
        raise unavailable(path, f"may be read by others; run: chmod 600 {printable(str(path))}")
    return key
