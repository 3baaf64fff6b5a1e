"""Text to path and path to file, without the checks."""

import ctypes
import os
import re
import stat
from functools import partial
from pathlib import Path

from threats.switches import around, control, instead, none, same, table, true

# fmt: off
table({
    "grammar_characters": ("Skip the grammar's checks of characters and normal form.", {
        "kernel.path:_character_problem": none}),
    "root_identity": ("Skip the check that a root is still at its bound location.", {
        "kernel.binding:BoundRoot.verify": none}),
    "folding": ("Treat names that differ only by case or normalisation as different.", {
        "policy.load:failure": none, "*kernel.path:fold": same}),
    "lookalike_names": ("Accept names that look like generated ones.", {"*policy.grammar:looked_like": none}),
    "grammar_escapes": ("Accept every escape in the grammar: `..`, NUL, drives and absolute paths.", {
        "kernel.path:_escape": none}),
    "grammar_names": ("Accept any segment as a name.", {"*kernel.path:segment_problem": none}),
    "checked_paths": ("Create paths from any text and open them unchanged.", {
        "kernel.path:_require_canonical": none,
        "kernel.root:Root.way": lambda _, path: os.fsencode(path.rel) or b"."}),
    "roots_apart": ("Accept nested roots, and roots around protected files.", {
        "kernel.binding:_require_apart": none}),
    "roots_ours": ("Accept roots of any owner and any mode.", {
        "kernel.binding:_require_ours": none}),
})
# fmt: on

_BENEATH, _NO_SYMLINKS, _NO_MAGICLINKS, _NO_XDEV = 0x08, 0x04, 0x02, 0x01


@control()
def grammar_decodes(off):
    """Decode percent escapes and accept `~` and `%` in names."""
    from urllib.parse import unquote

    off.put("kernel.path:RESERVED_ASCII", frozenset())
    off.wrap("kernel.path:_without_prefix", lambda real: lambda unsafe_path: unquote(real(unsafe_path)))


def _how(flags, off):
    from muniment.kernel import syscalls as openat2

    for purpose in list(openat2._HOWS):
        off.item(openat2._HOWS, purpose, ctypes.byref(openat2._OpenHow(purpose & ~os.O_NOFOLLOW, 0, flags)))


@instead("kernel.walk:_checked", in_workers=True)
def walk_device(fd, _device):
    """Let the walk cross to other devices."""
    from muniment.kernel.syscalls import fstat

    return fstat(fd).st_mode


@control(in_workers=True)
def layer_one(off):
    """Disable layer 1: accept any text, link, mount, hard link and special file."""
    off.also("grammar_escapes", "grammar_names", "checked_paths", "resolvers")
    _asked(off, links=1, regular=True)


def _asked(off, *, links=None, regular=False):
    """Replace the status of descriptors."""

    def make(real):
        def fstat(fd):
            found = real(fd)
            if links is not None and found.st_nlink and not stat.S_ISDIR(found.st_mode):
                found.st_nlink = links
            if regular and not stat.S_ISDIR(found.st_mode):
                found.st_mode = stat.S_IFREG | stat.S_IMODE(found.st_mode)
            return found

        return fstat

    off.wrap("kernel.root:fstat", make)
    off.wrap("kernel.walk:fstat", make)


# fmt: off
table({
    "listing_judged": ("Let `ls` and `grep` show all files, regardless of the policy.", {
        "sandbox.tools.workbench:Workbench._is_visible": true, "kernel.decide:Judge.allows": true}),
    "walk_checks": ("Replace the walk by one `open` of the full path, which follows links.", {
        "kernel.walk:WalkResolver.open": lambda _, at, path, how: (
            os.open(path, how & ~os.O_NOFOLLOW, dir_fd=at))}),
    "openat2_resolve": ("Let `openat2` follow all links and cross mounts.", partial(_how, 0)),
    "openat2_no_xdev": ("Let `openat2` cross mounts.", (
        partial(_how, _BENEATH | _NO_MAGICLINKS | _NO_SYMLINKS))),
    "resolvers": ("Let both resolvers follow links and cross mounts.", (
        lambda off: off.also("openat2_resolve", "walk_checks"))),
    "one_name": ("Skip the check of the link count of a file.", partial(_asked, links=1)),
    "regular_only": ("Treat every file except directories as a regular file.", partial(_asked, regular=True)),
}, in_workers=True)
# fmt: on


@control(in_workers=True, hangs_after=1)
def without_waiting(off):
    """Open files for reading without O_NONBLOCK."""
    from muniment.kernel import syscalls as openat2

    read, waiting = openat2.READ, openat2.READ & ~os.O_NONBLOCK
    how = openat2._OpenHow(waiting, 0, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS | _NO_XDEV)
    off.item(openat2._HOWS, read, ctypes.byref(how))

    def make(real):
        return lambda self, fd, path, asked: real(self, fd, path, waiting if asked == read else asked)

    off.wrap("kernel.walk:WalkResolver.open", make)


@control(in_workers=True, hangs_after=2)
def size_limit(off):
    """Read files of any size completely."""
    off.put("kernel.root:MAX_FILE_BYTES", 1 << 40)

    def read_bytes(self, path, limit=0):  # noqa: ARG001  the missing limit
        with self.open_file(path) as file:
            return file.read(1 << 31)

    off.put("kernel.root:Root.read_bytes", read_bytes)


@control()
def link_at_bind(off):
    """Open a root again by its path, through any links."""
    from pathlib import Path

    from threats.without.writing import Other

    def opened(path, flags, *more, **terms):
        return os.open(path, flags & ~os.O_NOFOLLOW, *more, **terms)

    off.put("kernel.binding:_resolved", lambda _scope, given: Path(given).absolute())
    off.wrap("kernel.binding:os", lambda real: Other(real, open=opened))


# fmt: off
table({
    "answering_checkouts": ("Trust a `.git` file without checking the other side.", {
        "workspaces.checkouts:_leads_to": true}),
    "linked_places": ("Accept any link as one from the old name of a repository.", {
        "workspaces.projects:_leads_to": true}),
    "marked_places": ("Accept any repository at the location of a project as that project.", {
        "workspaces.projects:_is_another": lambda *_: False}),
    "secret_marks": ("Accept a mark by its id alone.", {"=hmac:compare_digest": true}),
    "folders_inside": ("Follow a link in place of a repository folder.", {
        "*workspaces.projects:require_beneath": none}),
})
# fmt: on


@control()
def roots_at_home(off):
    """Put the default roots into the workspace."""

    def make(real):
        return lambda chosen, scopes, project, **more: dict.fromkeys(
            real(chosen, scopes, project, **more), Path(".muniment", "memory").absolute()
        )

    off.wrap("*settings:default_roots", make)
    off.also("roots_ours", "roots_apart")


@control()
def exact_files(off):
    """Match allow patterns like gitignore: a file, and all files under a directory of that name."""
    from muniment.kernel.decide import _compiled

    def match(self, path):
        files = _compiled(self._files, tree=False).pattern
        return re.match(rf"(?:{files})(?:/|\Z)", path.text) is not None

    off.put("policy.load:failure", none)  # Policies run their tests when they are loaded.
    off.put("kernel.decide:AllowPatterns.match", match)


@control(in_workers=True, hangs_after=2)
def linear_search(off):
    """Search patterns by backtracking."""
    import re

    off.put("sandbox.tools.workbench:re2", _Backtracking(re))


class _Backtracking:
    def __init__(self, backtracking):
        self._re, self.error = backtracking, backtracking.error

    class Options:
        pass

    def compile(self, pattern, _options):
        return self._re.compile(pattern.encode())


@around("kernel.root:Root.list_directory", in_workers=True)
def kinds_of_names(real, self, path):
    """List links and special files as their targets."""
    from muniment.kernel.root import Listed

    return tuple(Listed(entry.name, "file") if entry.kind == "other" else entry for entry in real(self, path))


@around("kernel.decide:_denies")
def instruction_files(real, policy, verb):
    """Remove the deny rules for instruction files of other agents."""
    return [each for each in real(policy, verb) if each[1].id != "instruction-files"]
