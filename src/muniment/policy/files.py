"""Policy files as they are read, and a loaded policy with its files.

    1. A policy file is a regular file, with at most `MAX_FILE_BYTES` of UTF-8; a FIFO is rejected without
       waiting. It is opened and read once. Its folder is read from the open descriptor, since its name may
       lead to another file by then. The folder determines whether it is a shipped file. A broken link is an
       error, and not a missing file.
    2. No key of its TOML has more than `MAX_KEY_PARTS` parts.

Codes of this module: E100 a file cannot be read · E102 not TOML.

Not guaranteed: that a file stays unchanged after it was read, or that no other process wrote it during the
read.

Cost: the import. It is separate from `family` and `load`, because a program that only reads a shipped policy
from its normal form (`shipped`) needs neither the models of policy files nor the checks of patterns.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from muniment.errors import PolicyInvalid, printable
from muniment.files import FOLLOW_FLAGS, open_descriptor, read_up_to
from muniment.kernel.decide import Layer, Policy
from muniment.portable import IS_LINUX

if TYPE_CHECKING:
    from muniment.policy.tables import PolicyFile

LOCK_NAME: Final = "policy.lock"
"""Name of the file with the digests of the policies of a folder at the last review."""

MAX_FILE_BYTES: Final = 262_144
"""Maximum size of a policy file; the largest shipped one has 6 000 bytes. A longer file is too long to
review.
"""

MAX_KEY_PARTS: Final = 16
"""Maximum number of parts of a dotted key; policies need three. For 16 000 parts `tomllib` needs a gigabyte.
"""

_LONG_KEY: Final = re.compile(
    r"""(?<![\w\\-])(?:(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+)"""
    rf"{{{MAX_KEY_PARTS}}}"
)


@dataclass(frozen=True)
class PolicyText:
    """One file of a family, or a policy text without a file.

    Attributes:
        where: the name or path by which it was requested, for messages.
        text: the content.
        identity: device and inode of the file; for a text without a file, its name.
        path: the absolute path of the file; None: a text without a file.
        folder: the real folder of the file when it was read; None: a text without a file.
        hard_link_identity: device and inode if the file has several hard links; None: it has one, or is
            shipped.
        is_shipped: whether the file is part of the program.
    """

    where: str
    text: str
    identity: object
    path: Path | None = None
    folder: Path | None = None
    hard_link_identity: tuple[int, int] | None = None
    is_shipped: bool = False

    @cached_property
    def tables(self) -> PolicyFile:
        """Return the parsed and validated content.

        Raises:
            PolicyInvalid: the content is invalid. The file of a `FamilyMember` was parsed before, so it
                cannot raise.
        """
        from muniment.policy.tables import read_tables

        return read_tables(parse_toml(self.text, self.where), self.where, self.text)

    @property
    def name(self) -> str:
        """Return the policy name that the content declares; it is unique in the family."""
        return self.tables.name


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A loaded policy, and the files that it was read from.

    Attributes:
        policy: the effective policy; each of its layers has the name of its file.
        files: the policy file itself, then its ancestors, each once.
        locks: the lock files that its files were checked against.
    """

    policy: Policy
    files: tuple[PolicyText, ...]
    locks: tuple[Path, ...] = ()

    @property
    def own_layer(self) -> Layer:
        """Return the rules of the policy file itself, without those of its ancestors."""
        return next(layer for layer in self.policy.layers if layer.name == self.files[0].name)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return the paths of all files that affected the policy, locks included.

        For each policy file, the result has its given path and its real path.
        """
        named = [file.path for file in self.files if file.path is not None]
        real = [file.folder / file.path.name for file in self.files if file.path and file.folder]
        return (*dict.fromkeys((*named, *real)), *self.locks)

    @property
    def hard_link_identities(self) -> frozenset[tuple[int, int]]:
        """Return device and inode of each policy file that has several hard links, as they were read."""
        return frozenset(
            file.hard_link_identity for file in self.files if file.hard_link_identity is not None
        )


class FileSnapshot(NamedTuple):
    """The content and status of a file, read from one open descriptor.

    Attributes:
        text: the content.
        status: the result of `os.fstat`.
        folder: the real folder of the file, from the kernel; on systems other than Linux, from its path.
    """

    text: str
    status: os.stat_result
    folder: Path


def read_text(path: Path) -> FileSnapshot | None:
    """Return the text of a policy file, with its status and folder, or None if the file does not exist.

    Raises:
        PolicyInvalid: the file cannot be read, is not a regular file, is too long, or is not UTF-8 (E100).
    """
    displayed_path = printable(str(path))
    with ExitStack() as stack:
        try:
            descriptor = stack.enter_context(open_descriptor(path, FOLLOW_FLAGS))
        except FileNotFoundError:
            if path.is_symlink():
                raise PolicyInvalid("E100", displayed_path, "is a broken link; repair or remove it") from None
            return None
        except (OSError, ValueError) as error:  # ValueError: NUL or a surrogate in the path.
            raise PolicyInvalid("E100", displayed_path, f"cannot be read: {_describe_error(error)}") from None
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PolicyInvalid(
                "E100", displayed_path, "is not a regular file; give the path of the policy file"
            )
        content = read_up_to(descriptor, MAX_FILE_BYTES + 1)
        folder = (Path(f"/proc/self/fd/{descriptor}").readlink() if IS_LINUX else path.resolve()).parent
    if len(content) > MAX_FILE_BYTES:
        raise PolicyInvalid("E100", displayed_path, f"is longer than {MAX_FILE_BYTES} bytes; shorten it")
    try:
        return FileSnapshot(content.decode(), status, folder)
    except UnicodeDecodeError:
        raise PolicyInvalid("E100", displayed_path, "is not UTF-8 text; save it as UTF-8") from None


def get_shipped_folder() -> Path:
    """Return the folder of the policies that are shipped with the program."""
    return Path(__file__).parents[1] / "policies"


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Return the content of a policy file as `tomllib` parses it.

    Raises:
        PolicyInvalid: the text is not TOML or nested too deeply (E102), with the line if known.
    """
    import tomllib

    try:
        reject_long_keys(text)
        return tomllib.loads(text)
    except RecursionError:
        problem = "nested too deeply"
    except ValueError as error:  # Includes TOMLDecodeError, and a number of too many digits.
        problem = str(error)
    position = re.search(r"\(at line (\d+), column \d+\)$", problem)
    line = (
        int(position[1])
        if position
        else text.count("\n") + 1
        if problem.endswith("(at end of document)")
        else None
    )
    raise PolicyInvalid("E102", where, f"not TOML: {problem}", line)


def reject_long_keys(text: str) -> None:
    """Raise if a key has so many parts that `tomllib` would need too much memory.

    Other text that looks like such a key is rejected too.

    Raises:
        ValueError: a key has too many parts; the message contains its line.

    Cost: linear in any text.
    """
    if (found := _LONG_KEY.search(text)) is not None:
        line = text.count("\n", 0, found.start()) + 1
        raise ValueError(f"a key has more than {MAX_KEY_PARTS} parts (at line {line}, column 1)")


def read_policy_text(path: Path, where: str) -> PolicyText | None:
    """Return the policy file at `path`, or None if it does not exist.

    Args:
        path: the file.
        where: the name or path by which it was requested, for messages.

    Raises:
        PolicyInvalid: the file cannot be read (E100).
    """
    read = read_text(path)
    if read is None:
        return None
    identity = (read.status.st_dev, read.status.st_ino)
    is_shipped = read.folder == Path(os.path.realpath(get_shipped_folder()))
    # A package manager may have linked an installed file; other users cannot write it.
    linked = identity if read.status.st_nlink > 1 and not is_shipped else None
    return PolicyText(where, read.text, identity, path.absolute(), read.folder, linked, is_shipped)


def _describe_error(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
