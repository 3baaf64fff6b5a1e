"""Backup and restore: the memory, its ledger and what is configured, as they were at one moment.

A backup is a tar, whose last member is a manifest with the size and digest of every other one:

    home/…                what stands in `user/`, `projects/`, `policies/`, `projects.json`, and `config.toml`
    outside/SCOPE/…       a root that `config.toml` binds elsewhere
    state/ledger.db       a copy made by SQLite while the locks of all roots were held, so that no commit is
                          half in it; and `state/audit.key`, without which it is worth nothing
    muniment-backup.json  the manifest

K1 While it is made, no commit is under way in a root: what was acknowledged before is in it, whole.
K2 Only plain files are taken; links and what is special are passed over, and told.
K3 Not in it: keys of model servers, tokens of the daemon, models, the catalog, which is made again.

R1 Restore reads the whole backup first: every member plain, named once, inside its place and as the manifest
   says, to the byte; then writes it to a directory beside the home, has the ledger's chain of records
   verified there, and renames that to the home in one step. Whatever is wrong, nothing is left.
R2 It takes no home that holds anything, and ends after `RESTORE_SECONDS`, whatever the backup holds.
R3 The ledger knows directories by their paths: those of the new home are put in the place of the old ones.
   What lay outside comes to `restored/SCOPE` in the new home, and `config.toml` binds it there.
R4 The ledger brings rows and nothing that runs: a schema that no migration makes is rejected before a
   statement of ours meets it (`store/schema.py`), and so are rows that SQLite's own checks find damaged.

Does not hold: anything against one who has the backup, since the ledger's key is in it: he reads all of it
and can make another one that verifies. Keep it as you keep the home.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
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
from muniment.files import LISTING, NEW, PRIVATE, READING, opened, sync
from muniment.kernel.binding import bind
from muniment.kernel.cancel import Patience
from muniment.kernel.land import lock_roots
from muniment.kernel.names import Scope
from muniment.names import MAX_CONFIG_BYTES
from muniment.policy.ownership import create_private_directory
from muniment.store.audit import Head, head_of_copy, verify
from muniment.store.database import Database
from muniment.store.ledger import move_roots
from muniment.store.schema import examine
from muniment.store.state import KEY_NAME, LEDGER_NAME, State, open_ledger

FORMAT: Final = "muniment-backup/1"
MANIFEST: Final = "muniment-backup.json"
OUTSIDE: Final = "outside"
RESTORED: Final = "restored"
"""Where roots stand in a restored home that had lain outside of it."""

RESTORE_SECONDS: Final = 1_800.0
"""Seconds after which a restore is given up, unless its caller says otherwise."""

MAX_FILES: Final = 200_000
MAX_MANIFEST_BYTES: Final = 268_435_456
MAX_LEVELS: Final = 64
MAX_NAME_BYTES: Final = 4_096
"""Bounds of what is restored; a memory of the shipped policies has 20 000 files a scope."""

SCRATCH: Final = ".muniment-copy-"
"""What the name of a directory begins with that holds a copy of the ledger while a backup is made."""

MAX_HEADER_BYTES: Final = 16_384
"""Bytes of what a tar tells of one file besides, such as a long name."""

_HEADERS: Final = frozenset(
    {
        *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
        *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    }
)

_KEPT: Final = ("user", "projects", "projects.json", "policies", "config.toml")
_MEMORY: Final = "memory"
_VERSION_BYTES: Final = 4
_VERSION_ENDS: Final = 64
"""Bytes of the header of a database up to its `user_version`, which has the last of them; 0: no ledger's."""

_BLOCK: Final = 1_048_576


@dataclass(slots=True)
class BackedUp:
    """What is in a backup.

    Attributes:
        files: how many, without the manifest.
        head: the end of the chain of records; kept elsewhere, it tells whether this backup is the one.
        outside: scopes whose roots lie outside the home.
        notes: what was passed over, and why.
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
    patience: Patience,
    observe: Callable[[int], None] = lambda _: None,
) -> BackedUp:
    """Write a backup of a home; writers wait meanwhile.

    Args:
        home: of `settings`.
        state: that of the home, open.
        outside: directories that `config.toml` binds, by scope; those beneath the home are not told twice.
        file: empty, and open to write.
        scratch: a directory for a copy of the ledger, which is gone afterwards.
        patience: until when to wait for writers.
        observe: told how many more files were read.

    Raises:
        ManagedMemoryUnavailable: a root or the state cannot be read or locked, with the reason.
        PathEscape: a root was moved away meanwhile.
        DeadlineExceeded, Cancelled: somebody held the lock of a root.
        OSError: the file cannot be written.

    Cost: reads everything once, under the locks.
    """
    real = Path(os.path.realpath(home))
    elsewhere = {scope: path for scope, path in outside.items() if not _is_beneath(path, real)}
    with TemporaryDirectory(dir=scratch, prefix=SCRATCH) as own:
        copy = Path(own) / LEDGER_NAME
        with _locked(real, elsewhere, patience, lambda: _copy_ledger(state, copy)) as roots:
            archive = _Archive(file, observe)
            archive.add_large(f"state/{LEDGER_NAME}", copy)
            archive.add_tree(f"state/{KEY_NAME}", state.directory / KEY_NAME)
            for name in _KEPT:
                archive.add_tree(f"home/{name}", real / name)
            for scope, path in elsewhere.items():
                archive.add_tree(f"{OUTSIDE}/{scope}", path)
        with closing(sqlite3.connect(copy)) as ledger:
            end = head_of_copy(ledger)  # By now the ledger itself may have more.
    told = {
        "format": FORMAT,
        "home": str(real),
        "roots": {name: os.path.realpath(path) for name, path in roots.items()},
        "files": archive.files,
    }
    done = archive.finish(told)
    done.head, done.outside = end, tuple(elsewhere)
    return done


def _is_beneath(path: Path, real_home: Path) -> bool:
    """Whether a bound root is in what is backed up of the home itself."""
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(real_home / top) for top in ("user", "projects"))


@contextmanager
def _locked(
    home: Path, elsewhere: Mapping[str, Path], patience: Patience, copy: Callable[[], None]
) -> Iterator[Mapping[str, Path]]:
    """The roots by their members, with the locks of all, and a copy of the ledger made when no other was."""
    while True:
        patience.check()
        roots = _roots(home, elsewhere)
        with ExitStack() as opened:
            bound = [
                opened.enter_context(bind(Scope(f"root-{number}"), path))
                for number, path in enumerate(roots.values())
            ]
            opened.enter_context(lock_roots(bound, patience))
            copy()
            if _roots(home, elsewhere) != roots:
                continue  # A project came meanwhile, and may have had a commit.
            yield roots
            return


def _roots(home: Path, elsewhere: Mapping[str, Path]) -> dict[str, Path]:
    """The directories into which commits are made, by the members that hold them."""
    ours = [home / "user", *sorted((home / "projects").glob(f"*/{_MEMORY}"))]
    found = {f"home/{each.relative_to(home)}": each for each in ours}
    found |= {f"{OUTSIDE}/{scope}": path for scope, path in elsewhere.items()}
    return {name: path for name, path in found.items() if path.is_dir()}


def _copy_ledger(state: State, path: Path) -> None:
    path.unlink(missing_ok=True)
    os.close(os.open(path, NEW, PRIVATE))
    is_full = False
    source = Database(state.directory / LEDGER_NAME, synchronous="FULL")
    with closing(source), source.bare() as connection, closing(sqlite3.connect(path)) as copy:
        try:
            connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as error:
            is_full = error.sqlite_errorcode == sqlite3.SQLITE_FULL
            if not is_full:
                raise
    if is_full:  # Where the copy is, which need not be where the state is.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _Archive:
    """A backup that is being written."""

    def __init__(self, file: IO[bytes], observe: Callable[[int], None]) -> None:
        self._tar = tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115  see `finish`
        self._observe = observe
        self.files: dict[str, tuple[int, str]] = {}
        self._notes: list[str] = []

    def add_tree(self, name: str, path: Path) -> None:
        """A file, or a directory with all beneath; links and what is special beneath are noted."""
        path = Path(os.path.realpath(path))  # The operator's own links, such as to another disk, lead here.
        if path.is_dir():
            with opened(path, LISTING) as fd:
                self._walk(name, fd, 0)
        elif path.exists():
            with os.fdopen(os.open(path, READING), "rb") as file:
                data = file.read()  # Whole, as `_add_plain` does.
            self._add(name, io.BytesIO(data), len(data))

    def add_large(self, name: str, path: Path) -> None:
        """A file that nobody else writes."""
        with os.fdopen(os.open(path, READING), "rb") as file:
            self._add(name, file, os.fstat(file.fileno()).st_size)

    def finish(self, told: Mapping[str, Any]) -> BackedUp:
        """The manifest, and the end."""
        data = json.dumps(told, indent=1, sort_keys=True).encode()
        member = tarfile.TarInfo(MANIFEST)
        member.mode, member.size = 0o600, len(data)
        self._tar.addfile(member, io.BytesIO(data))
        self._tar.close()
        size = sum(size for size, _ in self.files.values())
        return BackedUp(len(self.files), size, notes=self._notes)

    def _walk(self, above: str, folder: int, level: int) -> None:
        for name in sorted(os.listdir(folder)):
            shown = f"{above}/{name}"
            try:
                mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode) and level < MAX_LEVELS - 3:
                    with opened(name, LISTING, dir_fd=folder) as below:
                        self._walk(shown, below, level + 1)
                elif stat.S_ISREG(mode):
                    self._add_plain(shown, name, folder)
                else:
                    self._notes.append(f"passed over: {printable(shown)} (no plain file, or too deep)")
            except FileNotFoundError:
                continue  # It went: no commit is under way, and what else is done here is a person's.
            except PermissionError as error:
                raise ManagedMemoryUnavailable(printable(shown), "this user may not read it") from error

    def _add_plain(self, shown: str, name: str, folder: int) -> None:
        with os.fdopen(os.open(name, READING, dir_fd=folder), "rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                data = file.read()  # Whole: a person may write it meanwhile.
                self._add(shown, io.BytesIO(data), len(data))
            else:
                self._notes.append(f"passed over: {printable(shown)} (it has another name elsewhere)")

    def _add(self, name: str, file: BufferedReader | io.BytesIO, size: int) -> None:
        member = tarfile.TarInfo(name)
        member.mode, member.size = 0o600, size
        self.files[name] = (size, hashlib.file_digest(file, "sha256").hexdigest())
        file.seek(0)
        self._tar.addfile(member, file)
        self._observe(1)


# -- restore -----------------------------------------------------------------------------------------


def restore(
    home: Path,
    file: BinaryIO,
    *,
    patience: Patience,
    check: Callable[[Path], object] = lambda _: None,
    observe: Callable[[int], None] = lambda _: None,
) -> BackedUp:
    """Make a home of a backup (R1 to R4).

    Args:
        home: missing or empty.
        file: a backup, from anybody.
        patience: until when all of it has to be done.
        check: told the home before it has its name; raises `ConfigInvalid` where it cannot be used.
        observe: told how many more files were written.

    Raises:
        ConfigInvalid: the home holds something, or the file is no whole backup; nothing is left of it.
        StateTooNew: a newer version of Muniment made it; likewise.
        ManagedMemoryUnavailable: the disk cannot be written; likewise.
        DeadlineExceeded, Cancelled: the patience ended; likewise.
    """
    _require_empty(home)
    real = Path(os.path.realpath(home))
    beside = real.with_name(f".{real.name}.{token_hex(4)}.restoring")
    create_private_directory(beside)
    try:
        with _reporting(real):
            told, done = _unpacked(file, beside, patience, observe)
        _settle_ledger(beside, real, told, done, patience)
        with _reporting(real):
            _bind_anew(beside, real, done, patience)
            check(beside)
            os.sync()
            _require_empty(home)
            beside.rename(real)
            sync(real.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return done


def _require_empty(home: Path) -> None:
    with suppress(FileNotFoundError, NotADirectoryError):
        if any(home.iterdir()):
            raise ConfigInvalid(
                f"{printable(str(home))} holds something already, and restore replaces nothing: "
                "move it away, or set MUNIMENT_HOME to another one"
            )


@contextmanager
def _reporting(home: Path) -> Iterator[None]:
    """Turn what goes wrong with the file into `ConfigInvalid`, and with the disk into what says so."""
    try:
        yield
    except (tarfile.TarError, EOFError, ValueError, RecursionError) as error:
        raise ConfigInvalid(f"this is no whole backup: {error}; nothing was restored") from error
    except OSError as error:
        reason = f"cannot be written ({error.strerror or error}); nothing was restored"
        raise ManagedMemoryUnavailable(printable(str(home)), reason) from error


class ShortHeader(tarfile.TarInfo):
    """A member of a tar from anybody: what is told of one is short.

    Some Pythons take the square of the size of that to read it (CVE-2024-6232), and all of them hold it.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """See `tarfile`."""
        member = super().frombuf(buf, encoding, errors)
        if member.type in _HEADERS and member.size > MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"it tells more than {MAX_HEADER_BYTES} bytes of one file")
        return member


class _Member(ShortHeader):
    """A member that is plain, or a header of one. Any other kind is refused when it is met."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """See `tarfile`."""
        member = super().frombuf(buf, encoding, errors)
        if member.type not in {tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.XHDTYPE}:
            raise tarfile.ReadError(f"{printable(member.name)} is no plain file")
        return member


def _unpacked(
    file: BinaryIO, into: Path, patience: Patience, observe: Callable[[int], None]
) -> tuple[Mapping[str, Any], BackedUp]:
    """Every member is in its place, and as the manifest says; the manifest."""
    found: dict[str, tuple[int, str]] = {}
    with tarfile.open(fileobj=file, mode="r:", tarinfo=_Member) as archive:
        while (member := archive.next()) is not None and member.name != MANIFEST:
            source = None if member.issparse() else archive.extractfile(member)
            if source is None or len(found) >= MAX_FILES:
                raise ValueError(f"{printable(member.name)} is no plain file, or one too many")
            patience.check()
            if member.size > shutil.disk_usage(into).free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # Before it fills the disk of others.
            found[member.name] = (member.size, _put(source, into, member.name, patience))
            observe(1)
        content = None if member is None else archive.extractfile(member)
        if member is None or content is None or member.size > MAX_MANIFEST_BYTES:
            raise ValueError("it has no manifest at its end: it was cut off")
        told = json.loads(content.read())
        if archive.next() is not None:
            raise ValueError("something stands behind its manifest")
    done = BackedUp(len(found), sum(size for size, _ in found.values()))
    return _checked(told, found), done


def _checked(told: Any, found: Mapping[str, tuple[int, str]]) -> Mapping[str, Any]:
    """The manifest, if it tells of what was found and of nothing else."""
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise ValueError("it is none of this version")
    files, roots = told.get("files"), told.get("roots")
    texts = [told.get("home"), *(roots.values() if isinstance(roots, dict) else [None])]
    is_one = isinstance(files, dict) and all(isinstance(each, str) and os.fsencode(each) for each in texts)
    if not (is_one and isinstance(files, dict) and isinstance(roots, dict)):
        raise ValueError("its manifest is none")
    written = {name: list(each) for name, each in found.items()}  # As JSON has it.
    if files != written:
        wrong = min(name for name in {*written, *files} if written.get(name) != files.get(name))
        raise ValueError(f"{printable(wrong)} is not as it was backed up")
    if not {f"state/{LEDGER_NAME}", f"state/{KEY_NAME}"} <= set(found):
        raise ValueError("it has no ledger")
    return {"home": told["home"], "roots": {_place(f"{name}/x").parent: path for name, path in roots.items()}}


def _place(name: str) -> Path:
    """Where in a new home a member goes.

    Raises:
        ValueError: nowhere.
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
            return Path(RESTORED, *parts[1:])
        case ["state", ("ledger.db" | "audit.key") as own]:
            return Path("state", own)
    raise ValueError(f"{printable(name)} is no name of a file of a memory")


def _put(source: IO[bytes], into: Path, name: str, patience: Patience) -> str:
    """Write a new file; its digest. A name that comes twice, or is a folder's as well, is a `ValueError`."""
    digest, path = hashlib.sha256(), into / _place(name)
    try:
        create_private_directory(path.parent)
        fd = os.open(path, NEW, PRIVATE)
    except (FileExistsError, IsADirectoryError, ManagedMemoryUnavailable) as error:
        if isinstance(error, ManagedMemoryUnavailable) and not _leads_through_a_file(path, into):
            raise
        raise ValueError(f"{printable(name)} comes twice, or is a folder as well") from None
    with os.fdopen(fd, "wb") as file:
        while block := source.read(_BLOCK):
            patience.check()
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def _leads_through_a_file(path: Path, into: Path) -> bool:
    return any(each.is_file() for each in path.parents if each.is_relative_to(into))


def _settle_ledger(
    beside: Path, home: Path, told: Mapping[str, Any], done: BackedUp, patience: Patience
) -> None:
    """Check that the ledger is one of ours, to its rows (R4), and have its roots be those of the new home."""
    old = os.fsencode(told["home"])
    moved = {os.fsencode(path): os.fsencode(home / place) for place, path in told["roots"].items()}

    def new_place(path: bytes) -> bytes:
        is_beneath = path.startswith(old + b"/")
        return moved.get(path, os.fsencode(home) + path[len(old) :] if is_beneath else path)

    directory = beside / "state"
    with (directory / LEDGER_NAME).open("rb") as file:
        header = file.read(_VERSION_ENDS)
    if not any(header[-_VERSION_BYTES:]):
        raise ConfigInvalid("its ledger holds nothing; nothing was restored")
    try:
        open_ledger(directory / LEDGER_NAME, check=partial(examine, patience=patience)).close()
        with State(directory) as state:
            state.ledger.limit(patience)
            found = verify(state)
            if found.problems:
                raise ConfigInvalid(f"its records were changed: {found.problems[0]}; nothing was restored")
            patience.check()
            move_roots(state, new_place)
            done.head = found.head
    except ManagedMemoryUnavailable as error:
        patience.check()  # What SQLite calls interrupted.
        raise ConfigInvalid(f"its ledger cannot be used: {error.reason}; nothing was restored") from error
    for made in [each for each in directory.iterdir() if each.name not in {LEDGER_NAME, KEY_NAME}]:
        made.unlink()  # By looking; without them a new series of events begins with the first use.


def _bind_anew(beside: Path, home: Path, done: BackedUp, patience: Patience) -> None:
    """Have `config.toml` bind what lay outside where it is now, or note that a person has to."""
    path, restored = beside / "config.toml", beside / RESTORED
    done.outside = tuple(sorted(each.name for each in restored.iterdir())) if restored.is_dir() else ()
    if path.exists() and path.stat().st_size > MAX_CONFIG_BYTES:
        raise ConfigInvalid(f"its config.toml is larger than {MAX_CONFIG_BYTES} bytes; nothing was restored")
    for scope in done.outside:
        patience.check()
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        told = tomllib.loads(text)
        place = str(home / RESTORED / scope)
        line = rf"(?m)((?:^|[\s{{,.])[\"']?{re.escape(scope)}[\"']?\s*=\s*)(?:\"[^\"\n]*\"|'[^'\n]*')"
        now = json.dumps(place, ensure_ascii=False).replace("\\", "\\\\")
        again = re.sub(line, rf"\g<1>{now}", text)
        bound = told.get("roots", {})
        if isinstance(bound, dict) and _toml(again) == told | {"roots": bound | {scope: place}}:
            path.write_text(again, encoding="utf-8")
        else:
            done.notes.append(f"bind it in config.toml: [roots] {scope} = {json.dumps(place)}")


def _toml(text: str) -> object:
    with suppress(tomllib.TOMLDecodeError):
        return tomllib.loads(text)
    return None
