"""Settings files of other programs: read, compared, replaced, and kept as they were.

F1 A settings file that is a link is followed, and the file that it leads to is replaced: tools that manage
   such files link them, and a file in the place of their link would be theirs no more.
F2 Nothing is read or written where somebody else may write the file or put another in its place, nor where
   the file has further names, which would go on with the old text, or is read-only.
F3 A file is replaced whole, by a rename, with its owner, group, mode and extended attributes, and only while
   it holds what the change was made from. What its program writes between that look and the rename, some
   microseconds, is lost.
F4 What a file held is kept in `$MUNIMENT_HOME/setup`, readable by this user alone, until it is put back.

Apart from `setup`: what is done to files of other programs is reviewed by itself.
Attacked by `tests/surface/cli/test_setup.py`.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from muniment.errors import ConfigInvalid, printable
from muniment.files import opened, placing, read_up_to
from muniment.kernel.change import digest
from muniment.ownership import create_private_directory, require_way_ours

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


def _write_whole(file: SettingsFile, content: bytes) -> None:
    from muniment.store.state import sync

    file.path.parent.mkdir(_NEW_DIRECTORY, parents=True, exist_ok=True)

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

    def keep(self, before: bytes | None, after: bytes) -> None:
        """Keep what a file held, and tell by what it is going to hold whether it was changed since.

        Raises:
            ConfigInvalid: it cannot be kept.
        """
        note = {
            "tool": self.tool,
            "path": str(self.named),
            "existed": before is not None,
            "written": digest(after),
        }
        try:
            create_private_directory(self.directory)
            if before is None:
                self.original.unlink(missing_ok=True)
            else:
                _write_whole(read_settings_file(self.original), before)
            _write_whole(read_settings_file(self._note), json.dumps(note).encode())
        except (OSError, ChangedMeanwhile) as error:
            problem = getattr(error, "strerror", None) or "another setup runs"
            raise ConfigInvalid(f"{printable(str(self.named))} cannot be kept as it is: {problem}") from None

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
