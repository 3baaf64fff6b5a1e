"""Text to path and path to file, without what is checked there."""

from __future__ import annotations

import ctypes
import os
import stat

from threats.switches import Patches, control

_BENEATH, _NO_SYMLINKS, _NO_MAGICLINKS, _NO_XDEV = 0x08, 0x04, 0x02, 0x01


@control()
def grammar_escapes(off: Patches) -> None:
    """No text is an escape to the grammar: no `..`, NUL, drive or absolute path."""
    off.put("muniment.policy.grammar:_escape", lambda *_: None)


@control()
def grammar_names(off: Patches) -> None:
    """Any segment is a name to the grammar."""
    off.everywhere("muniment.policy.grammar:segment_problem", lambda _: None)


@control()
def grammar_characters(off: Patches) -> None:
    """The grammar looks at no single character and no normal form."""
    off.put("muniment.policy.grammar:_character_problem", lambda _: None)


@control()
def grammar_decodes(off: Patches) -> None:
    """Percent escapes are decoded, and `~` and `%` are ordinary characters."""
    from urllib.parse import unquote

    from muniment.policy import grammar

    real = grammar._without_prefix
    off.put("muniment.policy.grammar:RESERVED_ASCII", frozenset())
    off.put("muniment.policy.grammar:_without_prefix", lambda unsafe_path: unquote(real(unsafe_path)))


@control()
def root_text(off: Patches) -> None:
    """A root asks nothing of the text that it is given."""
    off.everywhere("muniment.confine.root:encoded", lambda rel: os.fsencode(rel) or b".")


def _resolve(off: Patches, flags: int) -> None:
    from muniment.confine import syscalls as openat2

    for purpose in list(openat2._HOWS):
        off.item(openat2._HOWS, purpose, ctypes.byref(openat2._OpenHow(purpose & ~os.O_NOFOLLOW, 0, flags)))


@control(in_workers=True)
def openat2_resolve(off: Patches) -> None:
    """`openat2` follows links wherever they lead, and crosses mounts."""
    _resolve(off, 0)


@control(in_workers=True)
def openat2_no_xdev(off: Patches) -> None:
    """`openat2` crosses mounts."""
    _resolve(off, _BENEATH | _NO_MAGICLINKS | _NO_SYMLINKS)


@control(in_workers=True)
def walk_checks(off: Patches) -> None:
    """The walk is one `open` of the whole path, which follows links."""
    off.put(
        "muniment.confine.root:WalkResolver.open",
        lambda _self, dir_fd, path, purpose: os.open(path, purpose & ~os.O_NOFOLLOW, dir_fd=dir_fd),
    )


@control(in_workers=True)
def walk_device(off: Patches) -> None:
    """The walk crosses to other devices."""
    from muniment.confine.syscalls import fstat

    off.put("muniment.confine.root:_checked", lambda fd, _device: fstat(fd).st_mode)


@control(in_workers=True)
def resolvers(off: Patches) -> None:
    """Neither resolver checks anything: links are followed, mounts crossed."""
    _resolve(off, 0)
    walk_checks(off)


@control(in_workers=True)
def layer_one(off: Patches) -> None:
    """Nothing of layer 1: text, links, mounts, hard links and special files are all taken as they come."""
    grammar_escapes(off)
    grammar_names(off)
    root_text(off)
    resolvers(off)
    _asked(off, links=1, regular=True)


def _asked(off: Patches, *, links: int | None = None, regular: bool = False) -> None:
    """Let descriptors answer otherwise than they would."""

    def make(real):
        def fstat(fd):
            found = real(fd)
            if links is not None and found.st_nlink and not stat.S_ISDIR(found.st_mode):
                found.st_nlink = links
            if regular and not stat.S_ISDIR(found.st_mode):
                found.st_mode = stat.S_IFREG | stat.S_IMODE(found.st_mode)
            return found

        return fstat

    off.wrap("muniment.confine.root:fstat", make)


@control(in_workers=True)
def one_name(off: Patches) -> None:
    """Nobody asks how many names a file has."""
    _asked(off, links=1)


@control(in_workers=True)
def regular_only(off: Patches) -> None:
    """Whatever is no directory passes for a regular file."""
    _asked(off, regular=True)


@control(in_workers=True, hangs_after=1)
def without_waiting(off: Patches) -> None:
    """Files are opened for reading without O_NONBLOCK."""
    from muniment.confine import root as walk
    from muniment.confine import syscalls as openat2
    from muniment.confine.syscalls import READ

    waiting = READ & ~os.O_NONBLOCK
    how = openat2._OpenHow(waiting, 0, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS | _NO_XDEV)
    off.item(openat2._HOWS, READ, ctypes.byref(how))

    def make(real):
        return lambda self, dir_fd, path, purpose: real(
            self, dir_fd, path, waiting if purpose == READ else purpose
        )

    off.wrap(f"{walk.__name__}:WalkResolver.open", make)


@control(in_workers=True, hangs_after=2)
def size_limit(off: Patches) -> None:
    """A file is read whole, however large it is."""
    off.put("muniment.confine.root:MAX_FILE_BYTES", 1 << 40)

    def read_bytes(self, rel, limit=0):  # noqa: ARG001  the limit is what is missing
        with self.open_file(rel) as file:
            return file.read(1 << 31)

    off.put("muniment.confine.root:Root.read_bytes", read_bytes)


@control()
def root_identity(off: Patches) -> None:
    """Nobody asks whether a root is still where it was bound."""
    off.put("muniment.confine.binding:BoundRoot.verify", lambda _self: None)


@control()
def link_at_bind(off: Patches) -> None:
    """A root is looked for again under the path that it was bound by, through whatever links stand there."""
    from pathlib import Path

    off.put("muniment.confine.binding:_resolved", lambda _scope, given: Path(given).absolute())
    off.wrap("muniment.confine.binding:os", _OpenFollowing)


class _OpenFollowing:
    def __init__(self, real):
        self._real = real

    def __getattr__(self, name):
        return getattr(self._real, name)

    def open(self, path, flags, *more, **terms):
        return self._real.open(path, flags & ~os.O_NOFOLLOW, *more, **terms)


@control()
def roots_at_home(off: Patches) -> None:
    """The default roots lie in the workspace."""
    from muniment import settings

    real = settings.default_roots

    def roots(chosen, scopes, workspace, **more):
        found = real(chosen, scopes, workspace, **more)
        return dict.fromkeys(found, workspace / ".muniment" / "memory")

    off.everywhere("muniment.settings:default_roots", roots)
    roots_ours(off)
    roots_apart(off)


@control()
def roots_apart(off: Patches) -> None:
    """Roots may lie inside one another, and around what must be kept apart from them."""
    off.put("muniment.confine.binding:_require_apart", lambda *_: None)


@control()
def roots_ours(off: Patches) -> None:
    """A root may belong to anyone and be writable by anyone."""
    off.put("muniment.confine.binding:_require_ours", lambda *_: None)


@control()
def folding(off: Patches) -> None:
    """Names that differ only by case or normalisation count as different."""
    _unasked(off)
    off.everywhere("muniment.policy.grammar:fold", lambda text: text)


def _unasked(off: Patches) -> None:
    """Policies do not notice what is missing: they test themselves when they are loaded."""
    off.put("muniment.policy.load:failure", lambda *_: None)


@control()
def exact_files(off: Patches) -> None:
    """An allow pattern matches as gitignore does: a file, and everything below a directory of that name."""

    _unasked(off)

    def match(self, path):
        return any(regex.match(path.text) is not None for regex in self._regexes)

    off.put("muniment.policy.decide:AllowPatterns.match", match)


@control(in_workers=True, hangs_after=2)
def linear_search(off: Patches) -> None:
    """Patterns are searched by backtracking."""
    import re

    off.put("muniment.tools.workbench:re2", _Backtracking(re))


class _Backtracking:
    def __init__(self, backtracking):
        self._re, self.error = backtracking, backtracking.error

    class Options:
        pass

    def compile(self, pattern, _options):
        return self._re.compile(pattern.encode())


@control(in_workers=True)
def kinds_of_names(off: Patches) -> None:
    """A listing passes over nothing: links and special files count as what they lead to."""

    def make(real):
        def list_directory(self, rel):
            from muniment.confine.root import Listed

            return tuple(
                Listed(entry.name, "file") if entry.kind == "other" else entry for entry in real(self, rel)
            )

        return list_directory

    off.wrap("muniment.confine.root:Root.list_directory", make)


@control(in_workers=True)
def listing_judged(off: Patches) -> None:
    """`ls` and `grep` show what stands there, whatever the policy grants."""
    off.put("muniment.tools.workbench:Workbench._is_visible", lambda *_: True)
    off.put("muniment.policy.decide:Judge.allows", lambda *_: True)


@control()
def lookalike_names(off: Patches) -> None:
    """A name may look like one of ours."""
    off.everywhere("muniment.policy.grammar:looked_like", lambda _name: None)


@control()
def instruction_files(off: Patches) -> None:
    """No policy denies anything to files that other agents load as instructions."""

    def make(real):
        def rules(policy, verb):
            return tuple(rule for rule in real(policy, verb) if rule.id != "instruction-files")

        return rules

    off.wrap("muniment.policy.decide:_deny_rules", make)
