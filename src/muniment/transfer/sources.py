"""Read the source of an import: a file, a folder, a zip or a tar. Every source may be hostile.

S1 A folder is read through open directory handles, starting at the given path. Links in it are not followed.
   Only regular files are opened, so that a FIFO never blocks.
S2 Archives are read in place and never unpacked. Members that are not regular files are reported and skipped.
S3 Counts, depths and sizes are limited by the constants below, also for compressed data.
S4 A name in the source is reported unchanged and never used as a path: `transfer/importing.py` chooses the
   names of entries.

The path of the source comes from the operator and may be a link. Separate from `importing.py`, which reads no
source files.
"""

from __future__ import annotations

import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path
from typing import IO, Final

from muniment.errors import ConfigInvalid, printable
from muniment.events import track_progress
from muniment.files import FOLLOW_FLAGS, LIST_FLAGS, READ_FLAGS, open_descriptor
from muniment.transfer.backup import ShortHeader
from muniment.transfer.formats import FORMATS, SourceItem, detect_format
from muniment.transfer.source_text import is_text_name

MAX_DOCUMENTS: Final = 100_000
MAX_ITEMS: Final = 100_000
"""Maximum number of files, and of items, in a source: five times the shipped quota of a scope."""

MAX_CHARACTERS: Final = 134_217_728
"""Maximum number of characters of all items: the quota of both scopes in the shipped policies."""

MAX_READ_BYTES: Final = 268_435_456
"""Maximum number of bytes that are retained to compare the source files with the memory after the import."""

MAX_LEVELS: Final = 32
"""Maximum number of nested folders."""

MAX_SOURCE_BYTES: Final = 1_073_741_824
"""Maximum number of bytes that are read from all files of a source, after decompression."""

MAX_TAR_BYTES: Final = 268_435_456
"""Maximum number of bytes of a tar: twice the quota of both scopes in the shipped policies."""

MAX_DIRECTORY_BYTES: Final = 33_554_432
"""Maximum number of bytes of the directory of a zip, which is read as a whole: about 300 000 files."""

_JSON_SUFFIXES: Final = (".json", ".jsonl")

_TOOL_FOLDERS: Final = frozenset(
    {".git", ".hg", ".svn", ".obsidian", ".trash", ".venv", ".cache", "node_modules", "__pycache__"}
)
"""Names of folders with the state of a tool. They are not read, and the report lists them."""

_NOT_TEXT: Final = "not a text or JSON file"
_TOOL_STATE: Final = "a folder with the state of a tool"
_BLOCK: Final = 1_048_576
_PEEK_DOCUMENTS: Final = 50
"""Number of files that are read to detect the format of a source."""

_ZIP_END: Final = b"PK\x05\x06"
_ZIP64_END: Final = b"PK\x06\x07"
_ZIP_TAIL: Final = 22 + 65_535 + 20
_ZIP_PLAIN: Final = (0, stat.S_IFREG)
_TAR_MAGIC: Final = (257, b"ustar")
"""Offset and value of the bytes that identify a tar. Source: POSIX.1-2017, pax, ustar Interchange Format."""

_DAMAGE_ERRORS: Final = (EOFError, ValueError, RuntimeError, zipfile.BadZipFile, tarfile.TarError, zlib.error)
"""The errors of a damaged archive. `RuntimeError` is raised for an unknown compression."""


class _Allowance:
    """The number of bytes that may still be read from a source."""

    def __init__(self) -> None:
        self.left = MAX_SOURCE_BYTES

    def consume(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise ConfigInvalid(f"the source is larger than {MAX_SOURCE_BYTES} bytes; import it in parts")


@dataclass(slots=True)
class SourceFile:
    """A file of a source, with the methods of `transfer.formats.Document`. The reader closes it after use.

    Attributes:
        name: the path in the source.
        file: the open file; None if it is not read.
        problem: why it cannot be read; empty if it can.
        skipped: why it is skipped on purpose; empty if it is read.
        allowance: the bytes that may still be read from the whole source; None: no limit.
        content: all bytes of the file, after `data` returned; empty before.
    """

    name: str
    file: IO[bytes] | None = None
    problem: str = ""
    skipped: str = ""
    allowance: _Allowance | None = None
    content: bytes = b""

    def head(self) -> bytes:
        """Return the first bytes of the file without consuming them; empty if they cannot be read."""
        peek = getattr(self.file, "peek", None)
        try:
            return b"" if peek is None else bytes(peek(_BLOCK))
        except (*_DAMAGE_ERRORS, OSError):
            return b""  # The read reports the error.

    def data(self, limit: int) -> bytes:
        """Return all bytes of the file, and store them in `content`.

        Args:
            limit: the maximum number of bytes.

        Raises:
            ValueError: the file is larger than `limit`, or cannot be read.
            ConfigInvalid: the limit for all files of the source is reached.
        """
        found = bytearray()
        for block in self.blocks():
            found += block
            if len(found) > limit:
                raise ValueError(f"larger than {limit} bytes")
        self.content = bytes(found)
        return self.content

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes of the file in blocks.

        Raises:
            ValueError: the file cannot be read; the text states the reason.
            ConfigInvalid: the limit for all files of the source is reached.
        """
        file = self.file
        try:
            while file is not None and (block := file.read(_BLOCK)):
                if self.allowance is not None:
                    self.allowance.consume(len(block))
                yield block
        except (*_DAMAGE_ERRORS, OSError) as error:
            raise ValueError(f"cannot be read: {error}") from error

    def close(self) -> None:
        """Close the file, whether it was read or not."""
        if self.file is not None:
            self.file.close()


@dataclass(frozen=True, slots=True)
class ReadSource:
    """The items and files of a source that was read.

    Attributes:
        format: the format of the source, one of `FORMATS`.
        items: the items in the order of the source, then the skipped files.
        files: the content of the files that were read as a whole, by name, to compare them with the memory.
    """

    format: str
    items: list[SourceItem]
    files: dict[str, bytes]


def read_source(path: Path, requested_format: str) -> ReadSource:
    """Read all items from the source of an import: a file, a folder, a zip or a tar.

    Args:
        path: the path that the operator passed.
        requested_format: one of `FORMATS`, or `auto` to detect the format.

    Raises:
        ConfigInvalid: the source cannot be read, has an unknown format, or is too large.
    """
    skipped: list[SourceItem] = []
    files: dict[str, bytes] = {}
    with ExitStack() as stack:
        stack.enter_context(track_progress("reading the source"))
        documents = _filter_readable(_limit_files(_open_documents(path, stack)), skipped)
        first: list[SourceFile] = list(islice(documents, _PEEK_DOCUMENTS))
        if not first:
            raise ConfigInvalid(f"{printable(str(path))} contains no file that can be imported")
        found = detect_format(first) if requested_format == "auto" else requested_format
        if found is None:
            raise ConfigInvalid(
                f"cannot detect the format of {printable(str(path))}; pass --from {'|'.join(FORMATS)}"
            )
        items = list(_limit_items(FORMATS[found](_close_after_use(chain(first, documents), files))))
    return ReadSource(found, items + skipped, files)


def _filter_readable(documents: Iterable[SourceFile], skipped: list[SourceItem]) -> Iterator[SourceFile]:
    """Yield the files to read; add the skipped files to `skipped` as items."""
    for each in documents:
        if each.skipped:
            skipped.append(SourceItem(each.name, skipped=each.skipped))
        else:
            yield each


def _limit_items(items: Iterator[SourceItem]) -> Iterator[SourceItem]:
    """Yield the items unchanged; raise ConfigInvalid if they are too many or too long together."""
    characters = 0
    for number, each in enumerate(items):
        characters += len(each.text)
        if number >= MAX_ITEMS or characters > MAX_CHARACTERS:
            limits = f"{MAX_ITEMS} items or {MAX_CHARACTERS} characters"
            raise ConfigInvalid(f"the source has more than {limits}; import it in parts")
        yield each


def _close_after_use(documents: Iterable[SourceFile], files: dict[str, bytes]) -> Iterator[SourceFile]:
    """Yield each file, and close it when the next one is requested; store its content in `files`.

    Raises:
        ConfigInvalid: the content of all files is too large to be stored.
    """
    size = 0
    for each in documents:
        try:
            yield each
        finally:
            each.close()
        if each.content:
            files[each.name], size = each.content, size + len(each.content)
        if size > MAX_READ_BYTES:
            raise ConfigInvalid(
                f"the source has more than {MAX_READ_BYTES} bytes of text; import it in parts"
            )


def _limit_files(documents: Iterator[SourceFile]) -> Iterator[SourceFile]:
    allowance = _Allowance()
    for number, each in enumerate(documents):
        if number >= MAX_DOCUMENTS:
            raise ConfigInvalid(f"the source has more than {MAX_DOCUMENTS} files; import it in parts")
        each.allowance = allowance
        yield each


def _open_documents(path: Path, stack: ExitStack) -> Iterator[SourceFile]:
    display_path = printable(str(path))
    try:
        fd = os.open(path, FOLLOW_FLAGS)
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            stack.callback(os.close, fd)
            yield from _walk_folder(fd, "", 0)
            return
        file = stack.enter_context(os.fdopen(fd, "rb"))
    except OSError as error:
        raise ConfigInvalid(f"{display_path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise ConfigInvalid(f"{display_path} is neither a regular file nor a folder")
    try:
        if file.peek(4).startswith(b"PK\x03\x04"):
            yield from _read_zip(file, stack, display_path)
        elif file.peek(512)[_TAR_MAGIC[0] :].startswith(_TAR_MAGIC[1]):
            if found.st_size > MAX_TAR_BYTES:
                raise ConfigInvalid(f"{display_path} is larger than {MAX_TAR_BYTES} bytes; unpack it first")
            yield from _read_tar(file, stack)
        else:
            yield SourceFile(path.name, file)
    except (*_DAMAGE_ERRORS, OSError) as error:
        raise ConfigInvalid(f"{display_path} is damaged: {error}") from error


def _walk_folder(folder: int, parent: str, level: int) -> Iterator[SourceFile]:
    """Yield the files of a folder and its subfolders, ordered by name."""
    for name in sorted(os.listdir(folder)):
        display_name = f"{parent}{name}"
        try:
            kind = stat.S_IFMT(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
            if kind == stat.S_IFDIR and name in _TOOL_FOLDERS:
                yield SourceFile(f"{display_name}/", skipped=_TOOL_STATE)
            elif kind == stat.S_IFDIR and level < MAX_LEVELS:
                with open_descriptor(name, LIST_FLAGS, dir_fd=folder) as child:
                    yield from _walk_folder(child, f"{display_name}/", level + 1)
            elif kind == stat.S_IFDIR:
                yield SourceFile(display_name, problem=f"nested more than {MAX_LEVELS} folders deep")
            elif kind == stat.S_IFLNK:
                yield SourceFile(display_name, problem="a link; links are not followed")
            elif _is_readable_name(display_name):
                yield SourceFile(display_name, _open_regular_file(name, folder))
            else:
                yield SourceFile(display_name, skipped=_NOT_TEXT)
        except OSError as error:
            yield SourceFile(display_name, problem=f"cannot be read: {error.strerror}")


def _is_readable_name(name: str) -> bool:
    """Return whether a file with this name is read: a text or JSON file.

    Names such as `._notes.md` are excluded: macOS stores file attributes under them.
    """
    base = name.rpartition("/")[2].lower()
    return (is_text_name(base) or base.endswith(_JSON_SUFFIXES)) and not base.startswith("._")


def _open_regular_file(name: str, folder: int) -> BufferedReader:
    fd = os.open(name, READ_FLAGS, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(0, "not a regular file")
    return os.fdopen(fd, "rb")


def _read_zip(file: BufferedReader, stack: ExitStack, display_path: str) -> Iterator[SourceFile]:
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - _ZIP_TAIL))
    tail = file.read()
    if _ZIP64_END in tail:
        raise ConfigInvalid(f"{display_path} is a ZIP64 archive; unpack it and import the folder")
    ends = [found.start() for found in re.finditer(re.escape(_ZIP_END), tail)]
    if any(
        int.from_bytes(tail[position + 12 : position + 16], "little") > MAX_DIRECTORY_BYTES
        for position in ends
    ):
        raise ConfigInvalid(f"{display_path} lists too many files; unpack it and import the folder")
    archive = stack.enter_context(zipfile.ZipFile(file))
    for member in archive.infolist():
        if member.filename.endswith("/"):
            continue
        if not _is_readable_name(member.filename):
            yield SourceFile(member.filename, skipped=_NOT_TEXT)
        elif stat.S_IFMT(member.external_attr >> 16) not in _ZIP_PLAIN:
            yield SourceFile(member.filename, problem="not a regular file")
        elif member.flag_bits & 1:
            yield SourceFile(member.filename, problem="encrypted")
        elif member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            yield SourceFile(member.filename, problem="unsupported compression: only deflate is supported")
        else:
            yield SourceFile(member.filename, archive.open(member))


def _read_tar(file: BufferedReader, stack: ExitStack) -> Iterator[SourceFile]:
    archive = tarfile.open(fileobj=file, mode="r:", tarinfo=ShortHeader)  # noqa: SIM115  it is entered
    stack.enter_context(archive)
    while (member := archive.next()) is not None:
        content = archive.extractfile(member) if member.isreg() and not member.issparse() else None
        if not member.isdir():
            yield SourceFile(member.name, content, "" if content is not None else "not a regular file")
