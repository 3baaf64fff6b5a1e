"""Read and replace settings files of other programs, and save their previous content.

F1 If a settings file is a link, the target is replaced and the link stays: tools that manage such files use
   links.
F2 A file is not read or written if another user can write or replace it, if it is read-only, or if it has
   further hard links, which would keep the old text.
F3 A file is replaced completely by a rename. It keeps its owner, group, mode and extended attributes. It is
   replaced only if it still has the content on which the change is based. If its program writes the file in
   the microseconds between this check and the rename, that write is lost.
F4 The previous content of a file is stored in `$MUNIMENT_HOME/setup`, readable only by this user, until it is
   restored.
F5 If a directory is created for a file, that is recorded in the same place. After the file is removed, the
   directory is removed if it is empty and still the same directory. No other directory is removed.

A separate module, so that changes to files of other programs can be reviewed alone. Attacked by
`tests/surface/cli/test_setup.py`.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from muniment.errors import ConfigInvalid, printable
from muniment.files import open_descriptor, read_up_to, sync_directory, write_atomically
from muniment.kernel.change import digest
from muniment.policy.ownership import require_trusted_directories

MAX_SETTINGS_BYTES: Final = 32 << 20
"""Maximum bytes of a settings file. Claude Code's file contains a history and may have some megabytes."""

_NEW_DIRECTORY: Final = 0o700


class ChangedMeanwhile(Exception):
    """Raised if a file no longer has the content on which a change is based; nothing was written."""


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A settings file, with the content that was read.

    Attributes:
        configured_path: the path that the program uses.
        path: the path after links are resolved.
        content: the content; None: the file does not exist.
        status: the status of the file; None: the file does not exist.
    """

    configured_path: Path
    path: Path
    content: bytes | None
    status: os.stat_result | None

    @property
    def label(self) -> str:
        """Return the path for a message; if the path is a link, also the path of the target."""
        target = "" if self.path == self.configured_path else f" (a link to {printable(str(self.path))})"
        return printable(str(self.configured_path)) + target


def read_settings_file(configured_path: Path) -> SettingsFile:
    """Read a settings file of another program.

    Raises:
        ConfigInvalid: it is not a regular file, is not safe to change (rule F2 of the module), or is too
            large.
    """
    label = printable(str(configured_path))
    try:
        path = configured_path.parent.resolve() / configured_path.name
        if path.is_symlink():
            path = path.resolve(strict=True)
        with suppress(FileNotFoundError, NotADirectoryError):
            require_trusted_directories(path)
        try:
            with open_descriptor(path) as fd:
                status = os.fstat(fd)
                _check_file(label, status)
                content = read_up_to(fd, MAX_SETTINGS_BYTES + 1)
        except FileNotFoundError:
            return SettingsFile(configured_path, path, None, None)
    except FileNotFoundError:
        raise ConfigInvalid(f"{label} is a broken link; repair or remove it") from None
    except (OSError, RuntimeError) as error:
        problem = getattr(error, "strerror", None) or "its links form a loop"
        raise ConfigInvalid(f"{label} cannot be read: {problem}") from None
    if len(content) > MAX_SETTINGS_BYTES:
        raise ConfigInvalid(f"{label} is larger than {MAX_SETTINGS_BYTES} bytes")
    return SettingsFile(configured_path, path, content, status)


def _check_file(label: str, status: os.stat_result) -> None:
    """Raise `ConfigInvalid` if setup must not change a file.

    The file must be a regular file that belongs to the user and that only the user can write. It must not
    have several hard links.
    """
    foreign_write_bits = stat.S_IWOTH if status.st_gid == os.getegid() else stat.S_IWOTH | stat.S_IWGRP
    if not stat.S_ISREG(status.st_mode):
        problem = "is not a file"
    elif status.st_uid != os.geteuid():
        problem = f"belongs to user {status.st_uid}, not to you; run this as its owner"
    elif status.st_mode & foreign_write_bits:
        mode = stat.S_IMODE(status.st_mode)
        problem = f"is writable by others (mode {mode:04o}); check it, then: chmod go-w"
    elif not status.st_mode & stat.S_IWUSR:
        mode = stat.S_IMODE(status.st_mode)
        problem = f"is read-only (mode {mode:04o}); to allow the change: chmod u+w"
    elif status.st_nlink > 1:
        problem = f"has {status.st_nlink} hard links, and only one would change; use a symbolic link"
    else:
        return
    raise ConfigInvalid(f"{label} {problem}")


def write_settings_file(file: SettingsFile, content: bytes | None) -> None:
    """Replace the content of a settings file, or delete the file, if it has not changed since it was read.

    Args:
        file: the file as it was read.
        content: the new content; None: delete the file.

    Raises:
        ChangedMeanwhile: the file has changed since it was read.
        ConfigInvalid: the file cannot be written; it is unchanged.
    """
    try:
        if content is None:
            _check_unchanged(file)
            file.path.unlink()
        else:
            _write_atomically(file, content)
    except OSError as error:
        raise ConfigInvalid(f"{file.label} cannot be written: {error.strerror}; it is unchanged") from None


class CreatedDirectory(NamedTuple):
    """A directory that setup created, with the inode number that identifies it."""

    path: str
    inode: int

    def is_above(self, path: Path) -> bool:
        """Return whether a path is inside this directory."""
        return Path(self.path) in path.parents

    def is_unchanged(self) -> bool:
        """Return whether the directory that setup created still exists."""
        try:
            return Path(self.path).lstat().st_ino == self.inode
        except OSError:
            return False


def create_directories(file: SettingsFile, created: list[CreatedDirectory]) -> None:
    """Create the missing directories above a settings file, and add each to `created`.

    Raises:
        ConfigInvalid: a directory cannot be created.
    """
    try:
        for each in reversed(file.path.parents):
            if not each.is_dir():
                with suppress(FileExistsError):  # Another process created it, or the file cannot be written.
                    each.mkdir(_NEW_DIRECTORY)
                    created.append(CreatedDirectory(str(each), each.lstat().st_ino))
    except OSError as error:
        raise ConfigInvalid(f"{file.label} cannot be written: {error.strerror}; it is unchanged") from None


def remove_directories(created: Iterable[CreatedDirectory]) -> None:
    """Remove those directories that are empty and still the ones that setup created, innermost first."""
    for each in sorted(created, key=lambda each: len(each.path), reverse=True):
        if each.is_unchanged():
            with suppress(OSError):  # It is not empty, or the system does not allow it: it stays.
                Path(each.path).rmdir()


def _write_atomically(file: SettingsFile, content: bytes) -> None:

    def rename(temporary: Path, path: Path) -> None:
        _check_unchanged(file)
        (os.link if file.content is None else os.replace)(temporary, path)

    try:
        with write_atomically(file.path, rename) as unfinished:
            _copy_attributes(unfinished.fileno(), file)
            unfinished.write(content)
    except FileExistsError:
        raise ChangedMeanwhile from None
    sync_directory(file.path.parent)


def _copy_attributes(fd: int, file: SettingsFile) -> None:
    """Copy the group, mode and extended attributes of the old file to the new file.

    Args:
        fd: the descriptor of the new file.
        file: the old file as it was read.
    """
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
    """Raise `ChangedMeanwhile` if a settings file has changed since it was read."""
    current = read_settings_file(file.configured_path)
    if (current.path, current.content) != (file.path, file.content):
        raise ChangedMeanwhile


# -- previous content --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SavedFile:
    """The saved content of a settings file that setup changed.

    Attributes:
        directory: `$MUNIMENT_HOME/setup`, which contains the saved content.
        tool: the name of the coding tool.
        configured_path: the path of the settings file, as the tool uses it.
    """

    directory: Path
    tool: str
    configured_path: Path

    @property
    def original_path(self) -> Path:
        """Return the path of the saved content; it does not exist if the settings file did not exist."""
        return self.directory / f"{self._stem}.original"

    @property
    def _record_path(self) -> Path:
        return self.directory / f"{self._stem}.json"

    @property
    def _stem(self) -> str:
        path = self.configured_path
        return f"{self.tool}-{path.name.lstrip('.')}-{digest(os.fsencode(path))[:8]}"

    def save(self, path: Path, before: bytes | None, after: bytes, created: list[CreatedDirectory]) -> None:
        """Save the previous content of a settings file, and the digest of the new content.

        The digest shows later whether the file was changed again.

        Args:
            path: the path of the settings file after links are resolved.
            before: the previous content; None: the file did not exist.
            after: the new content.
            created: the directories that setup created for the file; directories created for the saved
                content are added.

        Raises:
            ConfigInvalid: the content cannot be saved.
        """
        record = {
            "tool": self.tool,
            "path": str(self.configured_path),
            "existed": before is not None,
            "written": digest(after),
        }
        with self._convert_errors():
            create_directories(read_settings_file(self._record_path), created)
            saved_directories = {
                each for saved in list_saved_files(self.directory) for each in saved.list_saved_directories()
            }
            known = [
                each
                for each in {*created, *saved_directories}
                if each.is_above(path) or each.is_above(self._record_path)
            ]
            record["directories"] = sorted(each for each in known if each.is_unchanged())
            if before is None:
                self.original_path.unlink(missing_ok=True)
            else:
                _write_atomically(read_settings_file(self.original_path), before)
            self._write_record(record)

    def begin_removal(self) -> None:
        """Record that the settings file will be removed.

        If the removal is interrupted, a later `--remove` then also removes the directories of the file.

        Raises:
            ConfigInvalid: this cannot be recorded.
        """
        if self.list_directories():
            with self._convert_errors():
                self._write_record({**self._read_record(), "removing": True})

    def list_directories(self) -> list[CreatedDirectory]:
        """Return the directories that setup created for the settings file and for its saved content."""
        listed = self._read_record().get("directories")
        found = listed if isinstance(listed, list) else []
        return [CreatedDirectory(*each) for each in found if _is_created_directory(each)]

    def list_unused_directories(self) -> list[CreatedDirectory]:
        """Return the directories that are not needed after a removal.

        If setup removes the settings file, these are all directories that it created. Otherwise only those
        for the saved content.
        """
        return (
            self.list_directories()
            if self._read_record().get("removing") is True
            else self.list_saved_directories()
        )

    def list_saved_directories(self) -> list[CreatedDirectory]:
        """Return the directories that setup created for the saved content."""
        return [each for each in self.list_directories() if each.is_above(self._record_path)]

    def read_original(self, current: bytes | None) -> tuple[bool, bytes | None]:
        """Return whether the settings file is unchanged since setup wrote it, and its previous content.

        Args:
            current: the current content of the settings file; None: the file does not exist.

        Returns:
            Whether the file is unchanged, and its previous state is known.
            The previous content; None if it is unknown, or if the file did not exist.

        Raises:
            ConfigInvalid: the saved content cannot be read.
        """
        note = self._read_record()
        original = read_settings_file(self.original_path).content
        is_complete = original is not None or note.get("existed") is False
        return is_complete and current is not None and note.get("written") == digest(current), original

    @property
    def did_exist(self) -> bool | None:
        """Return whether the settings file existed before setup; None if this is unknown."""
        found = self._read_record().get("existed")
        return found if isinstance(found, bool) else None

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ChangedMeanwhile) as error:
            problem = getattr(error, "strerror", None) or "another setup runs"
            raise ConfigInvalid(
                f"{printable(str(self.configured_path))} cannot be saved: {problem}"
            ) from None

    def _write_record(self, note: Mapping[str, Any]) -> None:
        _write_atomically(read_settings_file(self._record_path), json.dumps(note).encode())

    def delete(self) -> None:
        """Delete the saved content and its record."""
        for path in (self._record_path, self.original_path):
            path.unlink(missing_ok=True)

    def _read_record(self) -> dict[str, Any]:
        try:
            found = json.loads(read_settings_file(self._record_path).content or b"{}")
        except ValueError:
            found = {}
        return found if isinstance(found, dict) else {}


def _is_created_directory(value: Any) -> bool:
    return isinstance(value, list) and [type(each) for each in value] == [str, int]


def list_saved_files(directory: Path) -> list[SavedFile]:
    """Return the saved content of all settings files that setup changed; skip invalid records.

    Args:
        directory: `$MUNIMENT_HOME/setup`.
    """
    found = []
    for note in sorted(directory.glob("*.json")):
        try:
            record = json.loads(read_settings_file(note).content or b"{}")
            found.append(SavedFile(directory, str(record["tool"]), Path(record["path"])))
        except (ValueError, LookupError, TypeError, ConfigInvalid):
            continue
    return found


def delete_saved_files(saved: Sequence[SavedFile]) -> None:
    """Delete the saved content of some settings files, and the empty directories that setup created."""
    unused = {directory for each in saved for directory in each.list_unused_directories()}
    for each in saved:
        each.delete()
    remove_directories(unused)
