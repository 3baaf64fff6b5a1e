"""Settings files of other programs: read, compared, replaced, and kept as they were.

F1 A settings file that is a link is followed, and the file that it leads to is replaced: tools that manage
   such files link them, and a file in the place of their link would be theirs no more.
F2 Nothing is read or written where somebody else may write the file or put another in its place, nor where
   the file has further names, which would go on with the old text, or is read-only.
F3 A file is replaced whole, by a rename, with its owner, group, mode and extended attributes, and only while
   it holds what the change was made from. What its program writes between that look and the rename, some
   microseconds, is lost.
F4 What a file held is kept in `$MUNIMENT_HOME/setup`, readable by this user alone, until it is put back.
F5 A directory that was made for a file is recorded there, and removed after that file if it is empty and
   still the same directory. No other directory is removed.

Apart from `setup`: what is done to files of other programs is reviewed by itself.
Attacked by `tests/surface/cli/test_setup.py`.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from muniment.errors import ConfigInvalid, printable
from muniment.files import opened, placing, read_up_to, sync
from muniment.kernel.change import digest
from muniment.policy.ownership import require_way_ours

MAX_SETTINGS_BYTES: Final = 32 << 20
"""Bytes of a settings file; Claude Code's, which holds a history, may have some megabytes."""

_NEW_DIRECTORY: Final = 0o700


class ChangedMeanwhile(Exception):
    """A file is no longer what a change was made from; nothing was written."""


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """What stood at a path.

    Attributes:
        named: where its program looks for it.
        path: where it lies, links followed.
        content: None: there is no file.
        status: of that file.
    """

    named: Path
    path: Path
    content: bytes | None
    status: os.stat_result | None

    @property
    def shown(self) -> str:
        """Its path, and where it lies if that is elsewhere."""
        lies = "" if self.path == self.named else f" (a link to {printable(str(self.path))})"
        return printable(str(self.named)) + lies


def read_settings_file(named: Path) -> SettingsFile:
    """What stands at a path.

    Raises:
        ConfigInvalid: it leads to no file, is not this user's alone to write (F2), or is too large.
    """
    shown = printable(str(named))
    try:
        path = named.parent.resolve() / named.name
        if path.is_symlink():
            path = path.resolve(strict=True)
        with suppress(FileNotFoundError, NotADirectoryError):
            require_way_ours(path)
        try:
            with opened(path) as fd:
                status = os.fstat(fd)
                _check_file(shown, status)
                content = read_up_to(fd, MAX_SETTINGS_BYTES + 1)
        except FileNotFoundError:
            return SettingsFile(named, path, None, None)
    except FileNotFoundError:
        raise ConfigInvalid(f"{shown} is a link that leads to nothing; remove or mend it") from None
    except (OSError, RuntimeError) as error:
        problem = getattr(error, "strerror", None) or "its links lead in a circle"
        raise ConfigInvalid(f"{shown} cannot be read: {problem}") from None
    if len(content) > MAX_SETTINGS_BYTES:
        raise ConfigInvalid(f"{shown} holds more than {MAX_SETTINGS_BYTES} bytes")
    return SettingsFile(named, path, content, status)


def _check_file(shown: str, status: os.stat_result) -> None:
    """Raise as `read_settings_file` does (F2)."""
    others = stat.S_IWOTH if status.st_gid == os.getegid() else stat.S_IWOTH | stat.S_IWGRP
    if not stat.S_ISREG(status.st_mode):
        problem = "is no file"
    elif status.st_uid != os.geteuid():
        problem = f"belongs to user {status.st_uid}, not to you; run this as its owner"
    elif status.st_mode & others:
        mode = stat.S_IMODE(status.st_mode)
        problem = f"can be written by others (mode {mode:04o}); look at it, then: chmod go-w"
    elif not status.st_mode & stat.S_IWUSR:
        mode = stat.S_IMODE(status.st_mode)
        problem = f"is read-only (mode {mode:04o}); if you mean it to change: chmod u+w"
    elif status.st_nlink > 1:
        problem = f"has {status.st_nlink} names (hard links), and one alone would change; use a symbolic link"
    else:
        return
    raise ConfigInvalid(f"{shown} {problem}")


def write_settings_file(file: SettingsFile, content: bytes | None) -> None:
    """Put this in the place of a file as it was read (F3); None: there shall be none.

    Raises:
        ChangedMeanwhile: it is another by now.
        ConfigInvalid: the system refuses. Nothing of the file was changed.
    """
    try:
        if content is None:
            _check_unchanged(file)
            file.path.unlink()
        else:
            _write_whole(file, content)
    except OSError as error:
        raise ConfigInvalid(f"{file.shown} cannot be written: {error.strerror}; it is as it was") from None


class MadeDirectory(NamedTuple):
    """A directory that setup made; the inode number identifies it (F5)."""

    path: str
    inode: int

    def is_above(self, path: Path) -> bool:
        """Return whether a path lies in this directory."""
        return Path(self.path) in path.parents

    def is_unchanged(self) -> bool:
        """Return whether this very directory is still there."""
        try:
            return Path(self.path).lstat().st_ino == self.inode
        except OSError:
            return False


def make_directories(file: SettingsFile, made: list[MadeDirectory]) -> None:
    """Make the missing directories above a settings file, and add each to `made`.

    Raises:
        ConfigInvalid: the system does not allow it.
    """
    try:
        for each in reversed(file.path.parents):
            if not each.is_dir():
                with suppress(FileExistsError):  # Another process made it, or the file cannot be written.
                    each.mkdir(_NEW_DIRECTORY)
                    made.append(MadeDirectory(str(each), each.lstat().st_ino))
    except OSError as error:
        raise ConfigInvalid(f"{file.shown} cannot be written: {error.strerror}; it is as it was") from None


def remove_directories(made: Iterable[MadeDirectory]) -> None:
    """Remove the directories that are empty and still those that were made, the innermost first (F5)."""
    for each in sorted(made, key=lambda each: len(each.path), reverse=True):
        if each.is_unchanged():
            with suppress(OSError):  # It is not empty, or the system does not allow it: it stays.
                Path(each.path).rmdir()


def _write_whole(file: SettingsFile, content: bytes) -> None:

    def name(beside: Path, path: Path) -> None:
        _check_unchanged(file)
        (os.link if file.content is None else os.replace)(beside, path)

    try:
        with placing(file.path, name) as unfinished:
            _take_after(unfinished.fileno(), file)
            unfinished.write(content)
    except FileExistsError:
        raise ChangedMeanwhile from None
    sync(file.path.parent)


def _take_after(fd: int, file: SettingsFile) -> None:
    """Give a new file group, mode and extended attributes of the one that it takes the place of (F3)."""
    if file.status is None:
        return
    if file.status.st_gid != os.fstat(fd).st_gid:
        os.fchown(fd, -1, file.status.st_gid)
    os.fchmod(fd, stat.S_IMODE(file.status.st_mode))
    for name in os.listxattr(file.path) if hasattr(os, "listxattr") else ():
        try:
            os.setxattr(fd, name, os.getxattr(file.path, name))
        except OSError as error:
            # Those of the system that it gives by itself; an access list is no such one, and may not be lost.
            if name == "system.posix_acl_access" or error.errno not in {
                errno.EPERM,
                errno.ENOTSUP,
                errno.ENODATA,
            }:
                raise


def _check_unchanged(file: SettingsFile) -> None:
    """Raise `ChangedMeanwhile` unless a file is what it was."""
    now = read_settings_file(file.named)
    if (now.path, now.content) != (file.path, file.content):
        raise ChangedMeanwhile


# -- what was there before ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeptFile:
    """What is kept of a settings file that was changed (F4).

    Attributes:
        directory: `$MUNIMENT_HOME/setup`.
        tool: whose file it is.
        named: where that looks for it.
    """

    directory: Path
    tool: str
    named: Path

    @property
    def original(self) -> Path:
        """What it held; missing if there was no file."""
        return self.directory / f"{self._stem}.original"

    @property
    def _note(self) -> Path:
        return self.directory / f"{self._stem}.json"

    @property
    def _stem(self) -> str:
        return f"{self.tool}-{self.named.name.lstrip('.')}-{digest(os.fsencode(self.named))[:8]}"

    def keep(self, path: Path, before: bytes | None, after: bytes, made: list[MadeDirectory]) -> None:
        """Keep what a file held, and tell by what it is going to hold whether it was changed since.

        Args:
            path: where it lies, links followed.
            before: what it held.
            after: what it is going to hold.
            made: the directories that setup made; those that are made to keep this are added.

        Raises:
            ConfigInvalid: it cannot be kept.
        """
        note = {
            "tool": self.tool,
            "path": str(self.named),
            "existed": before is not None,
            "written": digest(after),
        }
        with self._reporting():
            make_directories(read_settings_file(self._note), made)
            own = {each for kept in kept_files(self.directory) for each in kept.own_directories()}
            known = [each for each in {*made, *own} if each.is_above(path) or each.is_above(self._note)]
            note["directories"] = sorted(each for each in known if each.is_unchanged())
            if before is None:
                self.original.unlink(missing_ok=True)
            else:
                _write_whole(read_settings_file(self.original), before)
            self._write_note(note)

    def begin_removal(self) -> None:
        """Record that the file is about to be removed; a later `--remove` then goes on with its directories.

        Raises:
            ConfigInvalid: it cannot be recorded.
        """
        if self.directories():
            with self._reporting():
                self._write_note({**self._read_note(), "removing": True})

    def directories(self) -> list[MadeDirectory]:
        """Return the directories that setup made for the file, and to keep what it held."""
        listed = self._read_note().get("directories")
        found = listed if isinstance(listed, list) else []
        return [MadeDirectory(*each) for each in found if _is_made_directory(each)]

    def unused_directories(self) -> list[MadeDirectory]:
        """Return those of `directories` that nothing needs after `drop`: if setup removed the file, all."""
        return self.directories() if self._read_note().get("removing") is True else self.own_directories()

    def own_directories(self) -> list[MadeDirectory]:
        """Return those of `directories` that were made to keep what files held."""
        return [each for each in self.directories() if each.is_above(self._note)]

    def before(self, now: bytes | None) -> tuple[bool, bytes | None]:
        """Whether a file holds what was written, and what it held before; None: nothing that is known.

        Raises:
            ConfigInvalid: what is kept cannot be read.
        """
        note = self._read_note()
        original = read_settings_file(self.original).content
        is_whole = original is not None or note.get("existed") is False
        return is_whole and now is not None and note.get("written") == digest(now), original

    @property
    def existed(self) -> bool | None:
        """Whether there was a file before; None: who knows."""
        found = self._read_note().get("existed")
        return found if isinstance(found, bool) else None

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ChangedMeanwhile) as error:
            problem = getattr(error, "strerror", None) or "another setup runs"
            raise ConfigInvalid(f"{printable(str(self.named))} cannot be kept as it is: {problem}") from None

    def _write_note(self, note: Mapping[str, Any]) -> None:
        _write_whole(read_settings_file(self._note), json.dumps(note).encode())

    def drop(self) -> None:
        """Keep nothing any longer."""
        for path in (self._note, self.original):
            path.unlink(missing_ok=True)

    def _read_note(self) -> dict[str, Any]:
        try:
            found = json.loads(read_settings_file(self._note).content or b"{}")
        except ValueError:
            found = {}
        return found if isinstance(found, dict) else {}


def _is_made_directory(value: Any) -> bool:
    return isinstance(value, list) and [type(each) for each in value] == [str, int]


def kept_files(directory: Path) -> list[KeptFile]:
    """What is kept, of all files that were changed."""
    found = []
    for note in sorted(directory.glob("*.json")):
        try:
            told = json.loads(read_settings_file(note).content or b"{}")
            found.append(KeptFile(directory, str(told["tool"]), Path(told["path"])))
        except (ValueError, LookupError, TypeError, ConfigInvalid):
            continue
    return found
