"""A family: a policy file and all that it extends, read and understood, but not yet combined.

    1. A file is a regular one of at most `MAX_FILE_BYTES` of UTF-8; a FIFO is refused, not waited for. It is
       opened and read once; where it stands, and so whether it came with the program, is asked of that
       descriptor, since a name may lead elsewhere by then. A link that leads nowhere is no missing file.
    2. It is TOML that `tables` knows completely, no key of which has more than `MAX_KEY_PARTS` parts.
    3. An entry of `extends` is a path if it holds a `/` or ends in `.toml`, relative to the folder that the
       file stands in, links resolved. Any other entry is a name: shipped, in that folder, or in the
       operator's. Where several places hold it, they hold the same text.
    4. No file is its own ancestor, by name or by device and inode, and no two files of a family have one
       name.

Codes of this module: E100 a file cannot be read · E102 not TOML · E120 there is no such policy · E121 a
policy extends itself · E122 too many generations · E123 a file that calls itself something else than it was
asked by · E124 two different policies of one name.

What does not hold: that a file is still the same a moment after it was read, nor that nobody wrote it
meanwhile; a signature is over what was understood, not over the file.
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
from muniment.files import FOLLOWING, opened, read_up_to
from muniment.kernel.names import Digest
from muniment.policy.tables import POLICY_NAME, PolicyFile, is_path, read_tables
from muniment.portable import IS_LINUX

# -- family ------------------------------------------------------------------------------------------

MAX_FILE_BYTES: Final = 262_144
"""Bytes of a policy file; the largest shipped one has 6 000. What is longer nobody reviews."""

MAX_GENERATIONS: Final = 8
"""Policies from a file to its remotest ancestor, itself included."""

MAX_KEY_PARTS: Final = 16
"""Parts of a dotted key; policies have three. For one of 16 000 `tomllib` needs a gigabyte."""

_LONG_KEY: Final = re.compile(
    r"""(?<![\w\\-])(?:(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+)"""
    rf"{{{MAX_KEY_PARTS}}}"
)

Lookup = Callable[[str], str]
"""From the name of a policy to the text of its file; raises PolicyInvalid if there is none."""


@dataclass(frozen=True)
class PolicyText:
    """One file of a family.

    Attributes:
        where: what to call it in messages: the name or path that it was asked by.
        text: its content.
        identity: of the file, by device and inode; of a text that was handed over, its name.
        path: where it was found, absolute; None for a text.
        folder: in which it really stood when it was read; likewise.
        linked: its device and inode where the file has further names.
        is_shipped: it came with the program.
    """

    where: str
    text: str
    identity: object
    path: Path | None = None
    folder: Path | None = None
    linked: tuple[int, int] | None = None
    is_shipped: bool = False

    @cached_property
    def tables(self) -> PolicyFile:
        """The content as a value.

        Raises:
            PolicyInvalid: nobody understands it; never of a file of a `Member`.
        """
        return read_tables(parse_toml(self.text, self.where), self.where, self.text)

    @property
    def name(self) -> str:
        """What it calls itself; no other file of the family does."""
        return self.tables.name


@dataclass(frozen=True, slots=True)
class Member:
    """A file with its parents, in the order of `extends`.

    Attributes:
        generations: from the file to its remotest ancestor, itself included.
    """

    file: PolicyText
    parents: tuple[Member, ...]
    generations: int

    def everybody(self) -> tuple[PolicyText, ...]:
        """The file and its ancestors, each once, itself first."""
        found, waiting = {self.file.name: self.file}, [*self.parents]
        while waiting:
            member = waiting.pop(0)
            if member.file.name not in found:
                found[member.file.name] = member.file
                waiting += member.parents
        return tuple(found.values())


def read_family(name_or_path: str, policies_dir: Path | None) -> Member:
    """The family of a policy that a person names; see `load.load_files`."""
    find = partial(_find, policies_dir)
    found = find(name_or_path, None)
    if found is None and is_path(name_or_path):
        raise PolicyInvalid("E100", printable(name_or_path), "there is no such file")
    if found is None:
        problem = "there is no policy of that name, shipped or in the policy folder"
        raise PolicyInvalid("E120", name_or_path, problem)
    return _Reading(find).member(found, None if is_path(name_or_path) else name_or_path, ())


def read_texts(text: str, where: str, lookup: Lookup) -> Member:
    """The family of a policy that is no file; its parents are named, and `lookup` has their texts."""

    def find(entry: str, _folder: Path | None) -> PolicyText | None:
        return None if is_path(entry) else PolicyText(entry, lookup(entry), entry)

    return _Reading(find).member(PolicyText(where, text, None), None, ())


class Read(NamedTuple):
    """A file as its descriptor was.

    Attributes:
        folder: in which it stood, by the kernel's words, without links; elsewhere than on Linux by its name.
    """

    text: str
    status: os.stat_result
    folder: Path


def read_text(path: Path) -> Read | None:
    """The text of a file that belongs to a policy, and what and where it is; None if there is none.

    Raises:
        PolicyInvalid: it cannot be read, is no regular file, is too long, or is not UTF-8; E100.
    """
    shown = printable(str(path))
    with ExitStack() as held:
        try:
            descriptor = held.enter_context(opened(path, FOLLOWING))
        except FileNotFoundError:
            if path.is_symlink():
                raise PolicyInvalid(
                    "E100", shown, "is a link that leads nowhere; mend or remove it"
                ) from None
            return None
        except (OSError, ValueError) as error:  # ValueError: NUL or a surrogate in the path.
            raise PolicyInvalid("E100", shown, f"cannot be read: {_reason(error)}") from None
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PolicyInvalid("E100", shown, "is no regular file; name the policy file itself")
        content = read_up_to(descriptor, MAX_FILE_BYTES + 1)
        folder = (Path(f"/proc/self/fd/{descriptor}").readlink() if IS_LINUX else path.resolve()).parent
    if len(content) > MAX_FILE_BYTES:
        raise PolicyInvalid("E100", shown, f"is longer than {MAX_FILE_BYTES} bytes")
    try:
        return Read(content.decode(), status, folder)
    except UnicodeDecodeError:
        raise PolicyInvalid("E100", shown, "is not UTF-8 text") from None


def shipped_folder() -> Path:
    """Where the policies lie that come with the program."""
    return Path(str(resources.files("muniment") / "policies"))


def _find(policies_dir: Path | None, entry: str, folder: Path | None) -> PolicyText | None:
    """What an entry names that stands in a file of this folder, or on a command line; None: nothing."""
    if is_path(entry):
        path = (folder or Path()) / entry
        return _found(path, printable(str(path if folder else entry)))
    if POLICY_NAME.fullmatch(entry) is None:
        raise PolicyInvalid("E111", printable(entry), "a policy name is made of a-z, 0-9, `-` and `_`")
    places = [place for place in (shipped_folder(), folder, policies_dir) if place is not None]
    found = [each for place in places if (each := _found(place / f"{entry}.toml", entry)) is not None]
    for each in found[1:]:
        if each.text != found[0].text:
            problem = f"{found[0].path} and {each.path} are two policies of one name; rename one"
            raise PolicyInvalid("E124", entry, problem)
    return found[0] if found else None


class _Reading:
    """One load: each file is understood once."""

    def __init__(self, find: Callable[[str, Path | None], PolicyText | None]) -> None:
        self._find = find
        self._names: dict[str, object] = {}
        self._known: dict[object, Member] = {}

    def member(self, found: PolicyText, asked: str | None, line: tuple[PolicyText, ...]) -> Member:
        """What was found, with its parents.

        Args:
            found: the file, into which nobody looked yet.
            asked: the name by which; None for a path.
            line: the files that led here.
        """
        if found.identity in [file.identity for file in line]:
            raise PolicyInvalid("E121", found.where, f"extends itself{_by_way_of(line)}")
        if len(line) >= MAX_GENERATIONS:
            raise _too_remote(found, line)
        # A hard link in another folder has other parents, so it is another member.
        key = (found.identity, found.folder)
        if key not in self._known:
            self._known[key] = self._read(found, key, line)
        member = self._known[key]
        if asked not in {None, member.file.name}:
            raise PolicyInvalid(
                "E123", found.where, f"the file calls itself {member.file.name!r}{_via(line)}"
            )
        if len(line) + member.generations > MAX_GENERATIONS:
            raise _too_remote(found, line)
        return member

    def _read(self, file: PolicyText, key: object, line: tuple[PolicyText, ...]) -> Member:
        if self._names.setdefault(file.name, key) != key:
            problem = f"another file of the family calls itself {file.name!r} too; rename one"
            raise PolicyInvalid("E124", file.where, problem + _via(line))
        parents = tuple(self._parent(entry, (*line, file)) for entry in file.tables.extends)
        return Member(file, parents, 1 + max((parent.generations for parent in parents), default=0))

    def _parent(self, entry: str, line: tuple[PolicyText, ...]) -> Member:
        """What the last file of a line extends by this entry."""
        child = line[-1]
        if entry in [file.name for file in line]:
            raise PolicyInvalid("E121", entry, f"extends itself{_by_way_of(line)}")
        try:
            found = self._find(entry, child.folder)
        except PolicyInvalid as error:
            raise PolicyInvalid(error.rule, error.where, error.problem + _via(line)) from None
        if found is None:
            problem = f"extends {printable(entry)!r}, and there is no such policy{_via(line)}"
            raise PolicyInvalid("E120", child.where, problem)
        return self.member(found, None if is_path(entry) else entry, line)


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """What `tomllib` makes of a policy file.

    Raises:
        PolicyInvalid: it is not TOML, or nested too deeply; E102, with the line where that is known.
    """
    try:
        refuse_long_keys(text)
        return tomllib.loads(text)
    except RecursionError:
        problem = "nested too deeply"
    except ValueError as error:  # TOMLDecodeError is one, and so is a number of too many digits.
        problem = str(error)
    at = re.search(r"\(at line (\d+), column \d+\)$", problem)
    line = int(at[1]) if at else text.count("\n") + 1 if problem.endswith("(at end of document)") else None
    raise PolicyInvalid("E102", where, f"not TOML: {problem}", line)


def refuse_long_keys(text: str) -> None:
    """Refuse what `tomllib` would need more than it is worth for; also where it is no key but looks like one.

    Raises:
        ValueError: with the sentence.

    Cost: linear in the text, whatever it holds.
    """
    if (found := _LONG_KEY.search(text)) is not None:
        line = text.count("\n", 0, found.start()) + 1
        raise ValueError(f"a key has more than {MAX_KEY_PARTS} parts (at line {line}, column 1)")


def _found(path: Path, where: str) -> PolicyText | None:
    read = read_text(path)
    if read is None:
        return None
    identity = (read.status.st_dev, read.status.st_ino)
    is_shipped = read.folder == Path(os.path.realpath(shipped_folder()))
    # A package manager may have linked what it installs; that is nobody's to write.
    linked = identity if read.status.st_nlink > 1 and not is_shipped else None
    return PolicyText(where, read.text, identity, path.absolute(), read.folder, linked, is_shipped)


def _too_remote(found: PolicyText, line: tuple[PolicyText, ...]) -> PolicyInvalid:
    problem = f"is more than {MAX_GENERATIONS} generations away, or its ancestors are{_via(line)}"
    return PolicyInvalid("E122", found.where, problem)


def _by_way_of(line: tuple[PolicyText, ...]) -> str:
    return f" by way of {' → '.join(file.name for file in line)}"


def _via(line: tuple[PolicyText, ...]) -> str:
    return f" ({' → '.join(file.name for file in line)})" if line else ""


def _reason(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


# -- lock --------------------------------------------------------------------------------------------
#
# `policy.lock`: the digests that the policies of a folder had when somebody last looked at them.
#
#     1. A lock lies in the folder of the policies that it names, and holds for each file that is loaded from
#        there, ancestors of a policy included, by the folder that the file is named in and by the one that it
#        really stands in.
#     2. What is locked is the digest of the effective policy: a change of a parent is one of its children,
#        and a change of comments or tests is none.
#
# Codes of this module: E130 a policy has another digest than the locked one · E131 the lock does not name a
# policy · E132 the lock cannot be read, or is none.
#
# What does not hold: a lock stops nobody who may write the folder. It belongs into version control, where a
# change of it is a line that somebody reads.

LOCK_NAME: Final = "policy.lock"

_HEADER: Final = """\
# The digest of each policy in this folder, as `muniment policy lock` wrote it. A policy here that has another
# digest, or that is not named, does not load.
"""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_SHOWN_CHARS: Final = 8
"""Characters of a digest in a message, as in a label."""


def parse_lock(text: str) -> dict[str, Digest]:
    """The digests of a lock by the names of their policies.

    Raises:
        ValueError: the text is no TOML of names and digests; the message says what is wrong with it.
    """
    refuse_long_keys(text)
    data: dict[str, Any] = tomllib.loads(text)
    for name, digest in data.items():
        if POLICY_NAME.fullmatch(name) is None:
            raise ValueError(f"{printable(name)!r} is no name of a policy")
        if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
            raise ValueError(f"{name} has no SHA-256 of 64 hexadecimal digits")
    return {name: Digest(digest) for name, digest in data.items()}


def render_lock(digests: Mapping[str, Digest]) -> str:
    """The text of a lock, a line a policy, sorted by name."""
    return _HEADER + "".join(f'{name} = "{digests[name]}"\n' for name in sorted(digests))


def read_lock(path: Path) -> dict[str, Digest] | None:
    """The digests of a lock file; None if there is none.

    Raises:
        PolicyInvalid: E132.
    """
    shown = printable(str(path))
    try:
        read = read_text(path)
        return None if read is None else parse_lock(read[0])
    except PolicyInvalid as error:
        problem = error.problem
    except (RecursionError, ValueError) as error:
        problem = f"is no lock: {error}"
    raise PolicyInvalid("E132", shown, f"{problem}; write it anew: {_command(path)}")


def hold_to_locks(files: Iterable[tuple[PolicyText, Digest]], unlocked: Path | None) -> tuple[Path, ...]:
    """Hold every file to the locks beside it, and return these.

    Args:
        files: with the digest of the effective policy of each.
        unlocked: a folder whose lock does not count.

    Raises:
        PolicyInvalid: E130, E131 or E132.
    """
    locks: dict[Path, dict[str, Digest] | None] = {}
    for file, digest in files:
        for path in _locks_beside(file, unlocked):
            if path not in locks:
                locks[path] = read_lock(path)
            locked = locks[path]
            if locked is not None:
                _require_locked(file, digest, locked, path)
    return tuple(path for path, locked in locks.items() if locked is not None)


def _locks_beside(file: PolicyText, unlocked: Path | None) -> Iterator[Path]:
    """In the folder that the file is named in, and in the one that it stands in."""
    folders = (file.path and file.path.parent, file.folder)
    by_place = {os.path.realpath(each): each for each in folders if each is not None}
    for place, folder in by_place.items():
        if unlocked is None or place != os.path.realpath(unlocked):
            yield folder / LOCK_NAME


def _require_locked(file: PolicyText, digest: Digest, locked: Mapping[str, Digest], path: Path) -> None:
    shown, remedy = printable(str(path)), f"look at it, then run: {_command(path)}"
    if file.name not in locked:
        raise PolicyInvalid("E131", file.where, f"the policy {file.name} is not in {shown}; {remedy}")
    if locked[file.name] != digest:
        was, now = locked[file.name][:_SHOWN_CHARS], digest[:_SHOWN_CHARS]
        problem = f"the policy {file.name} is locked as {was}… in {shown}, and is {now}…; {remedy}"
        raise PolicyInvalid("E130", file.where, problem)


def _command(path: Path) -> str:
    return f"muniment policy lock {printable(str(path.parent))}"
