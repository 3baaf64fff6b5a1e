"""A family: a policy file and all files that it extends, read and parsed, but not yet combined.

    1. A file is regular, with at most `MAX_FILE_BYTES` of UTF-8; a FIFO is rejected without waiting. It is
       opened and read once. Its folder, and so whether it is a shipped file, is read from that descriptor,
       since the name may point to another file by then. A broken link does not count as a missing file.
    2. It is TOML that `tables` recognises completely. No key has more than `MAX_KEY_PARTS` parts.
    3. An entry of `extends` that contains a `/` or ends in `.toml` is a path, relative to the folder of the
       file, links resolved. Any other entry is a name: of a shipped policy, or of one in that folder or in
       the operator's. If several folders contain it, the texts must be equal.
    4. No file is its own ancestor, by name or by device and inode, and no two files of a family have the same
       name.

Codes of this module: E100 a file cannot be read · E102 not TOML · E120 policy not found · E121 a policy
extends itself · E122 too many generations · E123 the name in a file differs from the requested one · E124 two
different policies with one name.

Not guaranteed: that a file is unchanged a moment after it was read, or that no other process wrote it
meanwhile; a signature covers the parsed policy, not the file.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

from muniment.errors import PolicyInvalid, printable
from muniment.files import FOLLOW_FLAGS, open_descriptor, read_up_to
from muniment.kernel.names import Digest
from muniment.policy.tables import POLICY_NAME, PolicyFile, is_path, read_tables
from muniment.portable import IS_LINUX

# -- family ------------------------------------------------------------------------------------------

MAX_FILE_BYTES: Final = 262_144
"""Bytes of a policy file; the largest shipped one has 6 000. A longer file is too long to review."""

MAX_GENERATIONS: Final = 8
"""Policies from a file to its most distant ancestor, itself included."""

MAX_KEY_PARTS: Final = 16
"""Parts of a dotted key; policies have three. For one of 16 000 `tomllib` needs a gigabyte."""

_LONG_KEY: Final = re.compile(
    r"""(?<![\w\\-])(?:(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+)"""
    rf"{{{MAX_KEY_PARTS}}}"
)

Lookup = Callable[[str], str]
"""Returns the text of the policy file with a name; raises PolicyInvalid if it does not exist."""


@dataclass(frozen=True)
class PolicyText:
    """One file of a family.

    Attributes:
        where: name or path by which it was requested, for messages.
        text: its content.
        identity: device and inode of a file; for a given text, its name.
        path: absolute path of a file; None for a text.
        folder: real folder of a file when it was read; None for a text.
        hard_link_identity: device and inode of a file with further names.
        is_shipped: it is part of the program.
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
        """Return the parsed content.

        Raises:
            PolicyInvalid: the content is invalid; not possible for the file of a `FamilyMember`.
        """
        return read_tables(parse_toml(self.text, self.where), self.where, self.text)

    @property
    def name(self) -> str:
        """Return the name in the file, which is unique in the family."""
        return self.tables.name


@dataclass(frozen=True, slots=True)
class FamilyMember:
    """A file with its parents, in the order of `extends`.

    Attributes:
        generations: number from the file to its most distant ancestor, itself included.
    """

    file: PolicyText
    parents: tuple[FamilyMember, ...]
    generations: int

    def list_files(self) -> tuple[PolicyText, ...]:
        """Return the file and its ancestors, each once, itself first."""
        found, waiting = {self.file.name: self.file}, [*self.parents]
        while waiting:
            member = waiting.pop(0)
            if member.file.name not in found:
                found[member.file.name] = member.file
                waiting += member.parents
        return tuple(found.values())


def read_family(name_or_path: str, policies_dir: Path | None) -> FamilyMember:
    """Return the family of a policy that a person specifies; see `load.load_files`."""
    find = partial(_find_policy, policies_dir)
    found = find(name_or_path, None)
    if found is None and is_path(name_or_path):
        raise PolicyInvalid("E100", printable(name_or_path), "file not found")
    if found is None:
        problem = "policy not found, neither shipped nor in the policy folder"
        raise PolicyInvalid("E120", name_or_path, problem)
    return _FamilyReader(find).read_member(found, None if is_path(name_or_path) else name_or_path, ())


def read_text_family(text: str, where: str, lookup: Lookup) -> FamilyMember:
    """Return the family of a policy text; its parents are names, and `lookup` returns their texts."""

    def find(entry: str, _folder: Path | None) -> PolicyText | None:
        return None if is_path(entry) else PolicyText(entry, lookup(entry), entry)

    return _FamilyReader(find).read_member(PolicyText(where, text, None), None, ())


class FileSnapshot(NamedTuple):
    """The state of a file, from its descriptor.

    Attributes:
        folder: its real folder, from the kernel; on systems other than Linux, from its path.
    """

    text: str
    status: os.stat_result
    folder: Path


def read_text(path: Path) -> FileSnapshot | None:
    """Return the text of a policy file, with its status and folder; None if it does not exist.

    Raises:
        PolicyInvalid: it cannot be read, is not a regular file, is too long, or is not UTF-8; E100.
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
        raise PolicyInvalid("E100", displayed_path, "is not UTF-8 text") from None


def get_shipped_folder() -> Path:
    """Return the folder of the policies that are part of the program."""
    return Path(str(resources.files("muniment") / "policies"))


def _find_policy(policies_dir: Path | None, entry: str, folder: Path | None) -> PolicyText | None:
    """Find the policy for an entry in a file of `folder`, or on a command line; None if not found."""
    if is_path(entry):
        path = (folder or Path()) / entry
        return _read_policy_text(path, printable(str(path if folder else entry)))
    if POLICY_NAME.fullmatch(entry) is None:
        raise PolicyInvalid("E111", printable(entry), "a policy name may contain only a-z, 0-9, `-` and `_`")
    folders = [
        folder_path for folder_path in (get_shipped_folder(), folder, policies_dir) if folder_path is not None
    ]
    found = [
        each
        for folder_path in folders
        if (each := _read_policy_text(folder_path / f"{entry}.toml", entry)) is not None
    ]
    for each in found[1:]:
        if each.text != found[0].text:
            problem = f"{found[0].path} and {each.path} are two policies with the same name; rename one"
            raise PolicyInvalid("E124", entry, problem)
    return found[0] if found else None


class _FamilyReader:
    """One load, in which each file is parsed once."""

    def __init__(self, find: Callable[[str, Path | None], PolicyText | None]) -> None:
        self._find = find
        self._names: dict[str, object] = {}
        self._members: dict[object, FamilyMember] = {}

    def read_member(
        self, found: PolicyText, requested_name: str | None, descent: tuple[PolicyText, ...]
    ) -> FamilyMember:
        """Return the member for a file, with its parents.

        Args:
            found: the file, not parsed yet.
            requested_name: the name by which it was requested; None for a path.
            descent: the files from the first one to the child of this one.
        """
        if found.identity in [file.identity for file in descent]:
            raise PolicyInvalid("E121", found.where, f"extends itself{_format_cycle(descent)}")
        if len(descent) >= MAX_GENERATIONS:
            raise _build_depth_error(found, descent)
        # A hard link in another folder has other parents, so it is a different member.
        key = (found.identity, found.folder)
        if key not in self._members:
            self._members[key] = self._read(found, key, descent)
        member = self._members[key]
        if requested_name not in {None, member.file.name}:
            raise PolicyInvalid(
                "E123", found.where, f"the name in the file is {member.file.name!r}{_format_descent(descent)}"
            )
        if len(descent) + member.generations > MAX_GENERATIONS:
            raise _build_depth_error(found, descent)
        return member

    def _read(self, file: PolicyText, key: object, descent: tuple[PolicyText, ...]) -> FamilyMember:
        if self._names.setdefault(file.name, key) != key:
            problem = f"another file of the family has the name {file.name!r} too; rename one"
            raise PolicyInvalid("E124", file.where, problem + _format_descent(descent))
        parents = tuple(self._read_parent(entry, (*descent, file)) for entry in file.tables.extends)
        return FamilyMember(file, parents, 1 + max((parent.generations for parent in parents), default=0))

    def _read_parent(self, entry: str, descent: tuple[PolicyText, ...]) -> FamilyMember:
        """Return the member for an entry in `extends` of the last file of a line."""
        child = descent[-1]
        if entry in [file.name for file in descent]:
            raise PolicyInvalid("E121", entry, f"extends itself{_format_cycle(descent)}")
        try:
            found = self._find(entry, child.folder)
        except PolicyInvalid as error:
            raise PolicyInvalid(error.rule, error.where, error.problem + _format_descent(descent)) from None
        if found is None:
            problem = f"extends {printable(entry)!r}, which was not found{_format_descent(descent)}"
            raise PolicyInvalid("E120", child.where, problem)
        return self.read_member(found, None if is_path(entry) else entry, descent)


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Parse a policy file by `tomllib`.

    Raises:
        PolicyInvalid: it is not TOML, or nested too deeply; E102, with the line if known.
    """
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
    """Reject keys that would cost `tomllib` too much memory, and other text that looks like such a key.

    Raises:
        ValueError: with the message.

    Cost: linear in any text.
    """
    if (found := _LONG_KEY.search(text)) is not None:
        line = text.count("\n", 0, found.start()) + 1
        raise ValueError(f"a key has more than {MAX_KEY_PARTS} parts (at line {line}, column 1)")


def _read_policy_text(path: Path, where: str) -> PolicyText | None:
    read = read_text(path)
    if read is None:
        return None
    identity = (read.status.st_dev, read.status.st_ino)
    is_shipped = read.folder == Path(os.path.realpath(get_shipped_folder()))
    # A package manager may have linked an installed file; other users cannot write it.
    linked = identity if read.status.st_nlink > 1 and not is_shipped else None
    return PolicyText(where, read.text, identity, path.absolute(), read.folder, linked, is_shipped)


def _build_depth_error(found: PolicyText, descent: tuple[PolicyText, ...]) -> PolicyInvalid:
    problem = f"it or an ancestor is more than {MAX_GENERATIONS} generations away{_format_descent(descent)}"
    return PolicyInvalid("E122", found.where, problem)


def _format_cycle(descent: tuple[PolicyText, ...]) -> str:
    return f" through {' → '.join(file.name for file in descent)}"


def _format_descent(descent: tuple[PolicyText, ...]) -> str:
    return f" ({' → '.join(file.name for file in descent)})" if descent else ""


def _describe_error(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


# -- lock --------------------------------------------------------------------------------------------
#
# `policy.lock`: the digests of the policies of a folder at the last review.
#
#     1. A lock is in the folder of the policies that it lists. It applies to each file that is loaded from
#        there, ancestors of a policy included, by the folder of the file's path and by its real folder.
#     2. The locked digest is that of the effective policy: changing a parent changes its children, and
#        changing comments or tests has no effect.
#
# Codes of this module: E130 the digest of a policy differs from the locked one · E131 the lock does not list
# a policy · E132 the lock cannot be read or is invalid.
#
# Not guaranteed: a lock does not stop a process that may write the folder. Keep it under version control, so
# that every change of it is a line to review.

LOCK_NAME: Final = "policy.lock"

_HEADER: Final = """\
# The digest of each policy in this folder, written by `muniment policy lock`. A policy here that has another
# digest, or that is not listed, does not load.
"""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_DIGEST_PREFIX_CHARS: Final = 8
"""Characters of a digest in a message, as in a label."""


def parse_lock(text: str) -> dict[str, Digest]:
    """Return the digests of a lock by the names of their policies.

    Raises:
        ValueError: the text is not TOML with names and digests; the message states the problem.
    """
    reject_long_keys(text)
    data: dict[str, Any] = tomllib.loads(text)
    for name, digest in data.items():
        if POLICY_NAME.fullmatch(name) is None:
            raise ValueError(f"{printable(name)!r} is not a policy name")
        if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
            raise ValueError(f"{name} needs a SHA-256 of 64 hexadecimal digits")
    return {name: Digest(digest) for name, digest in data.items()}


def render_lock(digests: Mapping[str, Digest]) -> str:
    """Return the text of a lock, one line per policy, sorted by name."""
    return _HEADER + "".join(f'{name} = "{digests[name]}"\n' for name in sorted(digests))


def read_lock(path: Path) -> dict[str, Digest] | None:
    """Return the digests of a lock file; None if it does not exist.

    Raises:
        PolicyInvalid: E132.
    """
    displayed_path = printable(str(path))
    try:
        read = read_text(path)
        return None if read is None else parse_lock(read[0])
    except PolicyInvalid as error:
        problem = error.problem
    except (RecursionError, ValueError) as error:
        problem = f"is not a valid lock: {error}"
    raise PolicyInvalid("E132", displayed_path, f"{problem}; write it again: {_build_lock_command(path)}")


def check_locks(files: Iterable[tuple[PolicyText, Digest]], unlocked: Path | None) -> tuple[Path, ...]:
    """Check every file against the locks of its folders, and return these locks.

    Args:
        files: each with the digest of its effective policy.
        unlocked: a folder whose lock is ignored.

    Raises:
        PolicyInvalid: E130, E131 or E132.
    """
    locks: dict[Path, dict[str, Digest] | None] = {}
    for file, digest in files:
        for path in _iterate_lock_paths(file, unlocked):
            if path not in locks:
                locks[path] = read_lock(path)
            locked = locks[path]
            if locked is not None:
                _require_locked(file, digest, locked, path)
    return tuple(path for path, locked in locks.items() if locked is not None)


def _iterate_lock_paths(file: PolicyText, unlocked: Path | None) -> Iterator[Path]:
    """Yield the lock paths in the folder of the file's path, and in its real folder."""
    folders = (file.path and file.path.parent, file.folder)
    by_real_path = {os.path.realpath(each): each for each in folders if each is not None}
    for real_path, folder in by_real_path.items():
        if unlocked is None or real_path != os.path.realpath(unlocked):
            yield folder / LOCK_NAME


def _require_locked(file: PolicyText, digest: Digest, locked: Mapping[str, Digest], path: Path) -> None:
    displayed_path, remedy = printable(str(path)), f"review it, then run: {_build_lock_command(path)}"
    if file.name not in locked:
        raise PolicyInvalid(
            "E131", file.where, f"the policy {file.name} is not in {displayed_path}; {remedy}"
        )
    if locked[file.name] != digest:
        was, now = locked[file.name][:_DIGEST_PREFIX_CHARS], digest[:_DIGEST_PREFIX_CHARS]
        problem = f"the policy {file.name} has the digest {was}… in {displayed_path}, but is {now}…; {remedy}"
        raise PolicyInvalid("E130", file.where, problem)


def _build_lock_command(path: Path) -> str:
    return f"muniment policy lock {printable(str(path.parent))}"
