"""A family: a policy file and all files that it extends, read and parsed, but not yet combined.

    1. `files` reads a policy file, once. `tables` knows all of its content.
    2. An entry of `extends` that contains a `/` or ends in `.toml` is a path, relative to the folder of the
       file, links resolved. Any other entry is a name: of a shipped policy, of a policy in the folder of the
       file, or of one in the operator's folder. If several folders contain it, the texts must be equal.
    3. No file extends itself, directly or through other files. This is checked by name, and by device and
       inode. No two files of a family have the same name.

Codes of this module: E120 policy not found · E121 a policy extends itself · E122 too many generations · E123
the name in a file differs from the requested one · E124 two different policies with one name. E130 to E132:
locks, see below.

Not guaranteed: a signature covers the parsed policy, not the file.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from muniment.errors import PolicyInvalid, printable
from muniment.kernel.names import Digest
from muniment.policy.files import (
    LOCK_NAME,
    PolicyText,
    get_shipped_folder,
    read_policy_text,
    read_text,
    reject_long_keys,
)
from muniment.policy.tables import POLICY_NAME, is_path

# -- family ------------------------------------------------------------------------------------------

MAX_GENERATIONS: Final = 8
"""Maximum number of policies from a file to its most distant ancestor, both included."""

Lookup = Callable[[str], str]
"""Function that returns the text of the policy with a name, or raises `PolicyInvalid` if it does not exist.
"""


@dataclass(frozen=True, slots=True)
class FamilyMember:
    """A policy file with its parents, in the order of `extends`.

    Attributes:
        file: the policy file.
        parents: the files that it extends, with their own parents.
        generations: number of files from this one to its most distant ancestor, both included.
    """

    file: PolicyText
    parents: tuple[FamilyMember, ...]
    generations: int

    def list_files(self) -> tuple[PolicyText, ...]:
        """Return the file and all its ancestors, each once; the file itself is the first."""
        found, waiting = {self.file.name: self.file}, [*self.parents]
        while waiting:
            member = waiting.pop(0)
            if member.file.name not in found:
                found[member.file.name] = member.file
                waiting += member.parents
        return tuple(found.values())


def read_family(name_or_path: str, policies_dir: Path | None) -> FamilyMember:
    """Read the policy file that a person specifies, with all files that it extends.

    Args:
        name_or_path: as for `load.load_files`.
        policies_dir: the folder of the user's policies; None: no folder.

    Raises:
        PolicyInvalid: a file is missing or invalid, or cannot be extended.
    """
    find = partial(_find_policy, policies_dir)
    found = find(name_or_path, None)
    if found is None and is_path(name_or_path):
        raise PolicyInvalid("E100", printable(name_or_path), "file not found")
    if found is None:
        problem = "policy not found, neither shipped nor in the policy folder"
        raise PolicyInvalid("E120", name_or_path, problem)
    return _FamilyReader(find).read_member(found, None if is_path(name_or_path) else name_or_path, ())


def read_text_family(text: str, where: str, lookup: Lookup) -> FamilyMember:
    """Return a policy text with all policies that it extends.

    Args:
        text: the policy text; it must extend other policies by name.
        where: the name of the text, for messages.
        lookup: returns the text of the policy with a name.
    """

    def find(entry: str, _folder: Path | None) -> PolicyText | None:
        return None if is_path(entry) else PolicyText(entry, lookup(entry), entry)

    return _FamilyReader(find).read_member(PolicyText(where, text, None), None, ())


def _find_policy(policies_dir: Path | None, entry: str, folder: Path | None) -> PolicyText | None:
    """Return the policy file for a name or path, or None if it is not found.

    Args:
        policies_dir: the folder of the user's policies; None: no folder.
        entry: the name or path, from `extends` or from a command line.
        folder: the folder of the file with this `extends`; None: the entry is from a command line.
    """
    if is_path(entry):
        path = (folder or Path()) / entry
        return read_policy_text(path, printable(str(path if folder else entry)))
    if POLICY_NAME.fullmatch(entry) is None:
        raise PolicyInvalid("E111", printable(entry), "a policy name may contain only a-z, 0-9, `-` and `_`")
    folders = [
        folder_path for folder_path in (get_shipped_folder(), folder, policies_dir) if folder_path is not None
    ]
    found = [
        each
        for folder_path in folders
        if (each := read_policy_text(folder_path / f"{entry}.toml", entry)) is not None
    ]
    for each in found[1:]:
        if each.text != found[0].text:
            problem = f"{found[0].path} and {each.path} are two policies with the same name; rename one"
            raise PolicyInvalid("E124", entry, problem)
    return found[0] if found else None


class _FamilyReader:
    """Reader of the files of one family, which parses each file once.

    Args:
        find: returns the file for an entry of `extends` in a file of the given folder, or None.
    """

    def __init__(self, find: Callable[[str, Path | None], PolicyText | None]) -> None:
        self._find = find
        self._names: dict[str, object] = {}
        self._members: dict[object, FamilyMember] = {}

    def read_member(
        self, found: PolicyText, requested_name: str | None, descent: tuple[PolicyText, ...]
    ) -> FamilyMember:
        """Return a file with its parents, after the checks of the family.

        Args:
            found: the file, not parsed yet.
            requested_name: the name by which it was requested; None: it was requested by its path.
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
                "E123",
                found.where,
                f"the name in the file is {member.file.name!r}{_format_descent(descent)}; "
                "rename the file or the policy",
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
        """Read a parent of the last file in `descent`.

        Args:
            entry: the name or path of the parent in `extends`.
            descent: the files from the first one to the child of the parent.
        """
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


def _build_depth_error(found: PolicyText, descent: tuple[PolicyText, ...]) -> PolicyInvalid:
    problem = f"it or an ancestor is more than {MAX_GENERATIONS} generations away{_format_descent(descent)}"
    return PolicyInvalid("E122", found.where, problem)


def _format_cycle(descent: tuple[PolicyText, ...]) -> str:
    return f" through {' → '.join(file.name for file in descent)}"


def _format_descent(descent: tuple[PolicyText, ...]) -> str:
    return f" ({' → '.join(file.name for file in descent)})" if descent else ""


# -- lock --------------------------------------------------------------------------------------------
#
# `policy.lock`: the digests of the policies of a folder at the last review.
#
#     1. A lock lists the policies in its folder. It applies to each file that is loaded from this folder,
#        also as an ancestor of another policy. Both the folder of the file's path and its real folder count.
#     2. The locked digest is that of the effective policy: changing a parent changes its children, and
#        changing comments or tests has no effect.
#
# Codes of this section: E130 the digest of a policy differs from the locked one · E131 the lock does not list
# a policy · E132 the lock cannot be read or is invalid.
#
# Not guaranteed: a lock does not stop a process that may write the folder. Keep it under version control, so
# that every change of it is a line to review.

_HEADER: Final = """\
# The digest of each policy in this folder, written by `muniment policy lock`. A policy here that has another
# digest, or that is not listed, does not load.
"""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_DIGEST_PREFIX_CHARS: Final = 8
"""Number of characters of a digest in a message, as in a label."""


def parse_lock(text: str) -> dict[str, Digest]:
    """Return the digests that the text of a lock contains, by the names of the policies.

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
    """Return the text of a lock, with one line for each policy, sorted by name."""
    return _HEADER + "".join(f'{name} = "{digests[name]}"\n' for name in sorted(digests))


def read_lock(path: Path) -> dict[str, Digest] | None:
    """Return the digests of a lock file by policy name, or None if the file does not exist.

    Raises:
        PolicyInvalid: the lock cannot be read or is invalid (E132).
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
    """Check policy files against the locks of their folders, and return the paths of these locks.

    Args:
        files: the files, each with the digest of its effective policy.
        unlocked: a folder whose lock is ignored; None: ignore no lock.

    Raises:
        PolicyInvalid: a digest differs from the locked one (E130), a lock does not list the policy (E131), or
            a lock is invalid (E132).
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
    """Yield the paths of the locks for a file: in the folder of its path, and in its real folder."""
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
