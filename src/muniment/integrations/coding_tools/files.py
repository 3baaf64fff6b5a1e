"""Read, compare and replace settings files of other programs, and save their previous content.

F1 If a settings file is a link, its target is replaced: tools that manage such files use links, and a file in
   place of their link would no longer be managed.
F2 Nothing is read or written if another user can write the file or replace it, if the file has further hard
   links, which would keep the old text, or if it is read-only.
F3 A file is replaced completely, by a rename, with its owner, group, mode and extended attributes, and only
   while it has the content that the change is based on. A write of its program between that check and the
   rename, some microseconds, is lost.
F4 The previous content of a file is stored in `$MUNIMENT_HOME/setup`, readable only by this user, until it is
   restored.
F5 A directory that was created for a file is recorded there, and removed after that file if it is empty and
   still the same directory. No other directory is removed.

Separate from `setup`, so that changes to files of other programs can be reviewed alone. Attacked by
`tests/surface/cli/test_setup.py`.
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
"""Maximum bytes of a settings file; Claude Code's file contains a history and may have some megabytes."""

_NEW_DIRECTORY: Final = 0o700


class ChangedMeanwhile(Exception):
    """A file no longer has the content that a change is based on; nothing was written."""


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A settings file, as it was read.

    Attributes:
        named: the path that its program uses.
        path: the path after links are resolved.
        content: None: the file does not exist.
        status: of that file.
    """

    named: Path
    path: Path
    content: bytes | None
    status: os.stat_result | None

    @property
    def shown(self) -> str:
        """Return its path, and the target if it is a link."""
        lies = "" if self.path == self.named else f" (a link to {printable(str(self.path))})"
        return printable(str(self.named)) + lies


def read_settings_file(named: Path) -> SettingsFile:
    """Read a settings file.

    Raises:
        ConfigInvalid: it is not a file, other users can write it (F2), or it is too large.
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
        raise ConfigInvalid(f"{shown} is a broken link; repair or remove it") from None
    except (OSError, RuntimeError) as error:
        problem = getattr(error, "strerror", None) or "its links form a loop"
        raise ConfigInvalid(f"{shown} cannot be read: {problem}") from None
    if len(content) > MAX_SETTINGS_BYTES:
        raise ConfigInvalid(f"{shown} is larger than {MAX_SETTINGS_BYTES} bytes")
    return SettingsFile(named, path, content, status)


def _check_file(shown: str, status: os.stat_result) -> None:
    """Check the type, owner, mode and links of a file (F2); raise as `read_settings_file`."""
    others = stat.S_IWOTH if status.st_gid == os.getegid() else stat.S_IWOTH | stat.S_IWGRP
    if not stat.S_ISREG(status.st_mode):
        problem = "is not a file"
    elif status.st_uid != os.geteuid():
        problem = f"belongs to user {status.st_uid}, not to you; run this as its owner"
    elif status.st_mode & others:
        mode = stat.S_IMODE(status.st_mode)
        problem = f"is writable by others (mode {mode:04o}); check it, then: chmod go-w"
    elif not status.st_mode & stat.S_IWUSR:
        mode = stat.S_IMODE(status.st_mode)
        problem = f"is read-only (mode {mode:04o}); to allow the change: chmod u+w"
    elif status.st_nlink > 1:
        problem = f"has {status.st_nlink} hard links, and only one would change; use a symbolic link"
    else:
        return
    raise ConfigInvalid(f"{shown} {problem}")


def write_settings_file(file: SettingsFile, content: bytes | None) -> None:
    """Replace the content of a file as it was read (F3); None: delete the file.

    Raises:
        ChangedMeanwhile: it has changed since.
        ConfigInvalid: the system does not allow it. The file is unchanged.
    """
    try:
        if content is None:
            _check_unchanged(file)
            file.path.unlink()
        else:
            _write_whole(file, content)
    except OSError as error:
        raise ConfigInvalid(f"{file.shown} cannot be written: {error.strerror}; it is unchanged") from None


class MadeDirectory(NamedTuple):
    """A directory that setup created; the inode number identifies it (F5)."""

    path: str
    inode: int

    def is_above(self, path: Path) -> bool:
        """Return whether a path is in this directory."""
        return Path(self.path) in path.parents

    def is_unchanged(self) -> bool:
        """Return whether the same directory still exists."""
        try:
            return Path(self.path).lstat().st_ino == self.inode
        except OSError:
            return False


def make_directories(file: SettingsFile, made: list[MadeDirectory]) -> None:
    """Create the missing directories above a settings file, and add each to `made`.

    Raises:
        ConfigInvalid: the system does not allow it.
    """
    try:
        for each in reversed(file.path.parents):
            if not each.is_dir():
                with suppress(FileExistsError):  # Another process created it, or the file cannot be written.
                    each.mkdir(_NEW_DIRECTORY)
                    made.append(MadeDirectory(str(each), each.lstat().st_ino))
    except OSError as error:
        raise ConfigInvalid(f"{file.shown} cannot be written: {error.strerror}; it is unchanged") from None


def remove_directories(made: Iterable[MadeDirectory]) -> None:
    """Remove the directories that are empty and unchanged since setup created them, innermost first (F5)."""
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
    """Copy the group, mode and extended attributes of the replaced file to the new file (F3)."""
    if file.status is None:
        return
    if file.status.st_gid != os.fstat(fd).st_gid:
        os.fchown(fd, -1, file.status.st_gid)
    os.fchmod(fd, stat.S_IMODE(file.status.st_mode))
    for name in os.listxattr(file.path) if hasattr(os, "listxattr") else ():
        try:
            os.setxattr(fd, name, os.getxattr(file.path, name))
        except OSError as error:
            # The system sets its own attributes. An access list is not one of them, and must not be lost.
            if name == "system.posix_acl_access" or error.errno not in {
                errno.EPERM,
                errno.ENOTSUP,
                errno.ENODATA,
            }:
                raise


def _check_unchanged(file: SettingsFile) -> None:
    """Raise `ChangedMeanwhile` if a file has changed."""
    now = read_settings_file(file.named)
    if (now.path, now.content) != (file.path, file.content):
        raise ChangedMeanwhile


# -- previous content --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeptFile:
    """The saved content of a settings file that was changed (F4).

    Attributes:
        directory: `$MUNIMENT_HOME/setup`.
        tool: the tool of the file.
        named: the path that the tool uses.
    """

    directory: Path
    tool: str
    named: Path

    @property
    def original(self) -> Path:
        """Return the path of the previous content; missing if there was no file."""
        return self.directory / f"{self._stem}.original"

    @property
    def _note(self) -> Path:
        return self.directory / f"{self._stem}.json"

    @property
    def _stem(self) -> str:
        return f"{self.tool}-{self.named.name.lstrip('.')}-{digest(os.fsencode(self.named))[:8]}"

    def keep(self, path: Path, before: bytes | None, after: bytes, made: list[MadeDirectory]) -> None:
        """Save the previous content of a file, and the digest of the new one, to detect later changes.

        Args:
            path: of the file, after links are resolved.
            before: its previous content.
            after: its new content.
            made: the directories that setup created; those created for the saved content are added.

        Raises:
            ConfigInvalid: it cannot be saved.
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
        """Record that the file will be removed, so that a later `--remove` also removes its directories.

        Raises:
            ConfigInvalid: it cannot be recorded.
        """
        if self.directories():
            with self._reporting():
                self._write_note({**self._read_note(), "removing": True})

    def directories(self) -> list[MadeDirectory]:
        """Return the directories that setup created for the file and for its saved content."""
        listed = self._read_note().get("directories")
        found = listed if isinstance(listed, list) else []
        return [MadeDirectory(*each) for each in found if _is_made_directory(each)]

    def unused_directories(self) -> list[MadeDirectory]:
        """Return the directories that are unused after `drop`; all of them if setup removed the file."""
        return self.directories() if self._read_note().get("removing") is True else self.own_directories()

    def own_directories(self) -> list[MadeDirectory]:
        """Return the directories that were created for saved content."""
        return [each for each in self.directories() if each.is_above(self._note)]

    def before(self, now: bytes | None) -> tuple[bool, bytes | None]:
        """Return whether a file is unchanged since setup wrote it, and its previous content; None if unknown.

        Raises:
            ConfigInvalid: the saved content cannot be read.
        """
        note = self._read_note()
        original = read_settings_file(self.original).content
        is_whole = original is not None or note.get("existed") is False
        return is_whole and now is not None and note.get("written") == digest(now), original

    @property
    def existed(self) -> bool | None:
        """Return whether the file existed before setup; None if unknown."""
        found = self._read_note().get("existed")
        return found if isinstance(found, bool) else None

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ChangedMeanwhile) as error:
            problem = getattr(error, "strerror", None) or "another setup runs"
            raise ConfigInvalid(f"{printable(str(self.named))} cannot be saved: {problem}") from None

    def _write_note(self, note: Mapping[str, Any]) -> None:
        _write_whole(read_settings_file(self._note), json.dumps(note).encode())

    def drop(self) -> None:
        """Delete the saved content."""
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
    """Return the saved content of all changed files."""
    found = []
    for note in sorted(directory.glob("*.json")):
        try:
            told = json.loads(read_settings_file(note).content or b"{}")
            found.append(KeptFile(directory, str(told["tool"]), Path(told["path"])))
        except (ValueError, LookupError, TypeError, ConfigInvalid):
            continue
    return found
