"""Switch off checks between text and path, and between path and file."""

import ctypes
import os
import re
import stat
from functools import partial
from pathlib import Path

from threats.switches import (
    add_controls,
    control,
    do_nothing,
    replace_target,
    return_argument,
    return_true,
    wrap_target,
)

# fmt: off
add_controls({
    "grammar_characters": ("The grammar checks neither single characters nor normal forms.", {
        "kernel.path:_find_character_problem": do_nothing}),
    "root_identity": ("A root may have been replaced after it was bound.", {
        "kernel.binding:BoundRoot.verify": do_nothing}),
    "folding": ("Names that differ only in case or normalization are different.", {
        "policy.load:find_failure": do_nothing, "*kernel.path:fold": return_argument}),
    "lookalike_names": ("A name may look like a reserved one.", {
        "*policy.grammar:find_lookalike": do_nothing}),
    "grammar_escapes": ("The grammar detects no escapes: `..`, NUL, drives and absolute paths.", {
        "kernel.path:_find_escape": do_nothing}),
    "grammar_names": ("Any segment is a valid name.", {"*kernel.path:find_segment_problem": do_nothing}),
    "checked_paths": ("Any text is a path, and is opened unchanged.", {
        "kernel.path:_require_canonical": do_nothing,
        "kernel.root:Root.encode_path": lambda _, path: os.fsencode(path.rel) or b"."}),
    "roots_apart": ("Roots may be nested, and contain protected files.", {
        "kernel.binding:_require_disjoint": do_nothing}),
    "private_roots": ("Any user may own a root or write to it.", {
        "kernel.binding:_require_private": do_nothing}),
})
# fmt: on

_RESOLVE_BENEATH, _NO_SYMLINKS, _NO_MAGICLINKS, _NO_XDEV = 0x08, 0x04, 0x02, 0x01


@control()
def grammar_decodes(off):
    """Decode percent escapes and accept `~` and `%` in names."""
    from urllib.parse import unquote

    off.put("kernel.path:RESERVED_ASCII", frozenset())
    off.wrap("kernel.path:_strip_prefix", lambda real: lambda unsafe_path: unquote(real(unsafe_path)))


def _set_flags(flags, off):
    from muniment.kernel import syscalls as openat2

    for purpose in list(openat2._OPEN_HOWS):
        off.put_item(
            openat2._OPEN_HOWS, purpose, ctypes.byref(openat2._OpenHow(purpose & ~os.O_NOFOLLOW, 0, flags))
        )


@replace_target("kernel.walk:_require_on_device", in_workers=True)
def walk_device(fd, _device):
    """The walk crosses to other devices."""
    from muniment.kernel.syscalls import fstat

    return fstat(fd).st_mode


@control(in_workers=True)
def layer_one(off):
    """Layer 1 is off: text, links, mounts, hard links and special files are accepted."""
    off.disable("grammar_escapes", "grammar_names", "checked_paths", "resolvers")
    _change_status(off, links=1, regular=True)


def _change_status(off, *, links=None, regular=False):
    """Change the status that descriptors report."""

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
add_controls({
    "listing_judged": ("`ls` and `grep` show every file, even if the policy denies it.", {
        "sandbox.tools.workbench:Workbench._is_visible": return_true,
        "kernel.decide:PolicyEvaluator.allows": return_true}),
    "walk_checks": ("The walk is one `open` of the whole path, which follows links.", {
        "kernel.walk:WalkResolver.open": lambda _, at, path, how: (
            os.open(path, how & ~os.O_NOFOLLOW, dir_fd=at))}),
    "openat2_resolve": ("`openat2` follows all links and crosses mounts.", partial(_set_flags, 0)),
    "openat2_no_xdev": ("`openat2` crosses mounts.",
        partial(_set_flags, _RESOLVE_BENEATH | _NO_MAGICLINKS | _NO_SYMLINKS)),
    "resolvers": ("Both resolvers follow links and cross mounts.", (
        lambda off: off.disable("openat2_resolve", "walk_checks"))),
    "one_name": ("The number of a file's hard links is not checked.", partial(_change_status, links=1)),
    "regular_only": ("A special file passes for a regular one.", partial(_change_status, regular=True)),
}, in_workers=True)
# fmt: on


@control(in_workers=True, hangs_after=1)
def without_waiting(off):
    """Open files for reading without O_NONBLOCK."""
    from muniment.kernel import syscalls as openat2

    read, waiting = openat2.READ, openat2.READ & ~os.O_NONBLOCK
    how = openat2._OpenHow(waiting, 0, _RESOLVE_BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS | _NO_XDEV)
    off.put_item(openat2._OPEN_HOWS, read, ctypes.byref(how))

    def make(real):
        return lambda self, fd, path, flags: real(self, fd, path, waiting if flags == read else flags)

    off.wrap("kernel.walk:WalkResolver.open", make)


@control(in_workers=True, hangs_after=2)
def size_limit(off):
    """A file of any size is read whole."""
    off.put("kernel.root:MAX_FILE_BYTES", 1 << 40)

    def read_bytes(self, path, limit=0):  # noqa: ARG001  ignored on purpose
        with self.open_file(path) as file:
            return file.read(1 << 31)

    off.put("kernel.root:Root.read_bytes", read_bytes)


@control()
def link_at_bind(off):
    """A root is reopened by its path, through any links."""
    from pathlib import Path

    from threats.without.writing import ModuleProxy

    def open_through_links(path, flags, *more, **terms):
        return os.open(path, flags & ~os.O_NOFOLLOW, *more, **terms)

    off.put("kernel.binding:_resolve_path", lambda _scope, given: Path(given).absolute())
    off.wrap("kernel.binding:os", lambda real: ModuleProxy(real, open=open_through_links))


# fmt: off
add_controls({
    "answering_checkouts": ("A `.git` file is trusted, even if its target does not confirm it.", {
        "workspaces.checkouts:_resolves_to": return_true}),
    "linked_places": ("Any link counts as one from the old name of a repository.", {
        "workspaces.projects:_resolves_by_link": return_true}),
    "marked_places": ("A repository at the path of a project is that project's.", {
        "workspaces.projects:_is_other_repository": lambda *_: False}),
    "secret_marks": ("A mark is valid without its secret.", {"=hmac:compare_digest": return_true}),
    "folders_inside": ("The folder of a repository may lead anywhere.", {
        "*workspaces.projects:require_memory_in_checkout": do_nothing}),
})
# fmt: on


@control()
def roots_at_home(off):
    """The default roots are in the workspace."""

    def make(real):
        return lambda chosen, scopes, project, **more: dict.fromkeys(
            real(chosen, scopes, project, **more), Path(".muniment", "memory").absolute()
        )

    off.wrap("*settings:find_default_roots", make)
    off.disable("private_roots", "roots_apart")


@control()
def exact_files(off):
    """An allow pattern also matches everything below a directory of that name, as in gitignore."""
    from muniment.kernel.decide import _compile_patterns

    def match(self, path):
        files = _compile_patterns(self._files, tree=False).pattern
        return re.match(rf"(?:{files})(?:/|\Z)", path.text) is not None

    off.put("policy.load:find_failure", do_nothing)  # Otherwise the policy's own tests fail.
    off.put("kernel.decide:AllowPatterns.match", match)


@control(in_workers=True, hangs_after=2)
def linear_search(off):
    """Patterns are searched with backtracking."""
    import re

    off.put("sandbox.tools.workbench:re2", _Backtracking(re))


class _Backtracking:
    def __init__(self, backtracking):
        self._re, self.error = backtracking, backtracking.error

    class Options:
        pass

    def compile(self, pattern, _options):
        return self._re.compile(pattern.encode())


@wrap_target("kernel.root:Root.list_directory", in_workers=True)
def kinds_of_names(real, self, path):
    """A listing includes links and special files as their targets."""
    from muniment.kernel.root import ListedName

    return tuple(
        ListedName(entry.name, "file") if entry.kind == "other" else entry for entry in real(self, path)
    )


@wrap_target("kernel.decide:_collect_deny_rules")
def instruction_files(real, policy, verb):
    """No policy denies access to instruction files of other agents."""
    return [each for each in real(policy, verb) if each[1].id != "instruction-files"]
