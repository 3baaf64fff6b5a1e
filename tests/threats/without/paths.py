"""Text to path and path to file, without what is checked there."""

import ctypes
import os
import re
import stat
from functools import partial
from pathlib import Path

from threats.switches import around, control, instead, none, same, table, true

# fmt: off
table({
    "grammar_characters": ("The grammar looks at no single character and no normal form.", {
        "kernel.path:_character_problem": none}),
    "root_identity": ("Nobody asks whether a root is still where it was bound.", {
        "kernel.binding:BoundRoot.verify": none}),
    "folding": ("Names that differ only by case or normalisation count as different.", {
        "policy.load:failure": none, "*kernel.path:fold": same}),
    "lookalike_names": ("A name may look like one of ours.", {"*policy.grammar:looked_like": none}),
    "grammar_escapes": ("No text is an escape to the grammar: no `..`, NUL, drive or absolute path.", {
        "kernel.path:_escape": none}),
    "grammar_names": ("Any segment is a name to the grammar.", {"*kernel.path:segment_problem": none}),
    "checked_paths": ("A path is made of any text, and opened as it is.", {
        "kernel.path:_require_canonical": none,
        "kernel.root:Root.way": lambda _, path: os.fsencode(path.rel) or b"."}),
    "roots_apart": ("Roots may lie inside one another, and around what must be kept apart from them.", {
        "kernel.binding:_require_apart": none}),
    "roots_ours": ("A root may belong to anyone and be writable by anyone.", {
        "kernel.binding:_require_ours": none}),
})
# fmt: on

_BENEATH, _NO_SYMLINKS, _NO_MAGICLINKS, _NO_XDEV = 0x08, 0x04, 0x02, 0x01


@control()
def grammar_decodes(off):
    """Percent escapes are decoded, and `~` and `%` are ordinary characters."""
    from urllib.parse import unquote

    off.put("kernel.path:RESERVED_ASCII", frozenset())
    off.wrap("kernel.path:_without_prefix", lambda real: lambda unsafe_path: unquote(real(unsafe_path)))


def _how(flags, off):
    from muniment.kernel import syscalls as openat2

    for purpose in list(openat2._HOWS):
        off.item(openat2._HOWS, purpose, ctypes.byref(openat2._OpenHow(purpose & ~os.O_NOFOLLOW, 0, flags)))


@instead("kernel.walk:_checked", in_workers=True)
def walk_device(fd, _device):
    """The walk crosses to other devices."""
    from muniment.kernel.syscalls import fstat

    return fstat(fd).st_mode


@control(in_workers=True)
def layer_one(off):
    """Nothing of layer 1: text, links, mounts, hard links and special files are all taken as they come."""
    off.also("grammar_escapes", "grammar_names", "checked_paths", "resolvers")
    _asked(off, links=1, regular=True)


def _asked(off, *, links=None, regular=False):
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

    off.wrap("kernel.root:fstat", make)
    off.wrap("kernel.walk:fstat", make)


# fmt: off
table({
    "listing_judged": ("`ls` and `grep` show what stands there, whatever the policy grants.", {
        "sandbox.tools.workbench:Workbench._is_visible": true, "kernel.decide:Judge.allows": true}),
    "walk_checks": ("The walk is one `open` of the whole path, which follows links.", {
        "kernel.walk:WalkResolver.open": lambda _, at, path, how: (
            os.open(path, how & ~os.O_NOFOLLOW, dir_fd=at))}),
    "openat2_resolve": ("`openat2` follows links wherever they lead, and crosses mounts.", partial(_how, 0)),
    "openat2_no_xdev": ("`openat2` crosses mounts.", partial(_how, _BENEATH | _NO_MAGICLINKS | _NO_SYMLINKS)),
    "resolvers": ("Neither resolver checks anything: links are followed, mounts crossed.", (
        lambda off: off.also("openat2_resolve", "walk_checks"))),
    "one_name": ("Nobody asks how many names a file has.", partial(_asked, links=1)),
    "regular_only": ("Whatever is no directory passes for a regular file.", partial(_asked, regular=True)),
}, in_workers=True)
# fmt: on


@control(in_workers=True, hangs_after=1)
def without_waiting(off):
    """Files are opened for reading without O_NONBLOCK."""
    from muniment.kernel import syscalls as openat2

    read, waiting = openat2.READ, openat2.READ & ~os.O_NONBLOCK
    how = openat2._OpenHow(waiting, 0, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS | _NO_XDEV)
    off.item(openat2._HOWS, read, ctypes.byref(how))

    def make(real):
        return lambda self, fd, path, asked: real(self, fd, path, waiting if asked == read else asked)

    off.wrap("kernel.walk:WalkResolver.open", make)


@control(in_workers=True, hangs_after=2)
def size_limit(off):
    """A file is read whole, however large it is."""
    off.put("kernel.root:MAX_FILE_BYTES", 1 << 40)

    def read_bytes(self, path, limit=0):  # noqa: ARG001  the limit is what is missing
        with self.open_file(path) as file:
            return file.read(1 << 31)

    off.put("kernel.root:Root.read_bytes", read_bytes)


@control()
def link_at_bind(off):
    """A root is looked for again under the path that it was bound by, through whatever links stand there."""
    from pathlib import Path

    from threats.without.writing import Other

    def opened(path, flags, *more, **terms):
        return os.open(path, flags & ~os.O_NOFOLLOW, *more, **terms)

    off.put("kernel.binding:_resolved", lambda _scope, given: Path(given).absolute())
    off.wrap("kernel.binding:os", lambda real: Other(real, open=opened))


# fmt: off
table({
    "answering_checkouts": ("A `.git` file is believed, whatever the other side says.", {
        "workspaces.checkouts:_leads_to": true}),
    "linked_places": ("Any link counts as one from the old name of a repository.", {
        "workspaces.projects:_leads_to": true}),
    "marked_places": ("A repository at the place of a project is that project's.", {
        "workspaces.projects:_is_another": lambda *_: False}),
    "secret_marks": ("A mark counts by the id that it names.", {"=hmac:compare_digest": true}),
    "folders_inside": ("A folder of a repository is wherever it leads.", {
        "*workspaces.projects:require_beneath": none}),
})
# fmt: on


@control()
def roots_at_home(off):
    """The default roots lie in the workspace."""

    def make(real):
        return lambda chosen, scopes, project, **more: dict.fromkeys(
            real(chosen, scopes, project, **more), Path(".muniment", "memory").absolute()
        )

    off.wrap("*settings:default_roots", make)
    off.also("roots_ours", "roots_apart")


@control()
def exact_files(off):
    """An allow pattern matches as gitignore does: a file, and everything below a directory of that name."""
    from muniment.kernel.decide import _compiled

    def match(self, path):
        files = _compiled(self._files, tree=False).pattern
        return re.match(rf"(?:{files})(?:/|\Z)", path.text) is not None

    off.put("policy.load:failure", none)  # Policies test themselves when they are loaded.
    off.put("kernel.decide:AllowPatterns.match", match)


@control(in_workers=True, hangs_after=2)
def linear_search(off):
    """Patterns are searched by backtracking."""
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
    """A listing passes over nothing: links and special files count as what they lead to."""
    from muniment.kernel.root import Listed

    return tuple(Listed(entry.name, "file") if entry.kind == "other" else entry for entry in real(self, path))


@around("kernel.decide:_denies")
def instruction_files(real, policy, verb):
    """No policy denies anything to files that other agents load as instructions."""
    return [each for each in real(policy, verb) if each[1].id != "instruction-files"]
