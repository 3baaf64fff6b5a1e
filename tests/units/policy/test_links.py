"""Link targets inside a root: as a table of shapes, and compared with the kernel on random trees."""

import ctypes
import errno
import os
import re
import tempfile
from itertools import dropwhile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.errors import BadName, PathEscape
from muniment.kernel.names import RelPath, Scope, Via
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.policy.grammar import MAX_LINKS_FOLLOWED, MAX_STEPS, resolve


def path(rel):
    return CanonicalPath(Scope("user"), RelPath(rel))


def follow_links(rel, links):
    """Return the path that `rel` leads to, with a final slash if only a directory is possible."""
    found = resolve(path(rel), links)
    return found.path.rel + ("/" if found.is_directory else "")


def parse_links(line):
    """Parse the links of `a -> b, c -> d`."""
    return dict(link.split(" -> ") for link in line.split(", ")) if line else {}


SHAPES = """
no link: a.md = a.md | b.md -> c.md
a file in a folder: l.md = topic/a.md | l.md -> topic/a.md
relative to its folder: t/l.md = t/a.md | t/l.md -> a.md
up and in again: t/l.md = a.md | t/l.md -> ../a.md
a folder, and on: t/a.md = real/a.md | t -> real
through the root: here/here/a.md = a.md | here -> .
a chain: a.md = d.md | a.md -> b.md, b.md -> t/c.md, t/c.md -> ../d.md
up from its real folder: t/l.md = deep/a.md | t -> deep/er, deep/er/l.md -> ../a.md
up out of a folder that is a link: l.md = deep/a.md | l.md -> t/../a.md, t -> deep/er
up out of a missing folder: l.md = a.md | l.md -> t/../a.md
empty and dot segments: l.md = t/a.md | l.md -> .//t/.///./a.md
a final slash: l.md = a.md/ | l.md -> a.md/
a final dot: l.md = t/ | l.md -> t/.
a final step up: l.md = t/ | l.md -> t/u/..
a final slash only in a link: l = a.md/ | l -> m/, m -> a.md
a name of another case: L.md = L.md | l.md -> a.md
the deepest name there is: l.md = 1/2/3/4/5/6/7/f.md | l.md -> 1/2/3/4/5/6/7/f.md
a former link: t/l.md = t/l.md | t/l.md/x -> a.md
the scope:  = / | l.md -> a.md
a path without links: t/a.md = t/a.md |
"""
FORTY = {str(n): str(n + 1) for n in range(MAX_LINKS_FOLLOWED)}


def test_link_inside_the_root_is_resolved():
    for line in SHAPES.strip().splitlines():
        _, rel, expected, links = re.fullmatch(r"([^:]+): (\S*) = (\S+) \|(.*)", line).groups()
        assert follow_links(rel, parse_links(links.strip())) == expected, line
    assert follow_links("0", FORTY) == str(MAX_LINKS_FOLLOWED)
    assert follow_links("l", {"l": "./" * (MAX_STEPS - 2) + "a.md"}) == "a.md"
    with pytest.raises(PathEscape):
        follow_links("l", {"l": "./" * (MAX_STEPS - 1) + "a.md"})


OUTSIDE = "/etc/passwd /srv/memory/user/a.md / //server/share /proc/self/cwd .. ../outside/secret.md"
LEAVING = "../project/a.md ../user/a.md t/../../a.md l l/l a*b/../../x"
CHAINS = """l -> t/../../a.md, t -> deep/er/..|l -> t/m, t/m -> /etc|l -> t/m, t/m -> ../../x|
l -> t/m, t/m -> ../l|l -> m/\udcff, m -> /"""
ESCAPES = [
    *({"l": target} for target in ("", *f"{OUTSIDE} {LEAVING}".split())),
    *map(parse_links, CHAINS.replace("\n", "").split("|")),
    {"l": "0", **FORTY},
]


@pytest.mark.threat("T-PATH-14", control="links_confined")
def test_link_that_leaves_the_root_or_never_ends_is_an_escape():
    for links in ESCAPES:
        for rel in ("l", "l/a.md"):
            with pytest.raises(PathEscape) as caught:
                resolve(path(rel), links)
            assert (caught.value.via, caught.value.requested) == (Via.SYMLINK, f"user/{rel}"), links


BAD = [
    *("a*b.md", "\udcff.md", "a\nb.md", "a\0b", "e\u0301.md", "con.md", "a*b/../a.md", "..\\a.md", "C:/a.md"),
    *("x" * 256, "/".join(["x" * 200] * 6), "1/2/3/4/5/6/7/8/f.md", "t/" * 12 + "../" * 11 + "a.md"),
]


def test_link_to_an_invalid_name_does_not_reveal_its_target():
    message = "user/t/l.md points to a name that is not allowed in this memory; use another file"
    for target in BAD:
        with pytest.raises(BadName) as caught:
            resolve(path("t/l.md"), {"t/l.md": target})
        assert (target, str(caught.value)) == (target, message)


class CountingMap(dict):
    """A map that counts its look-ups in bytes."""

    bytes_requested = 0

    def get(self, key, default=None):
        self.bytes_requested += len(key)
        return super().get(key, default)


def test_chain_of_long_targets_is_bounded_in_cost():
    """Each link leads to the next one and leaves 4 KiB of names to walk."""
    for piece in ("a/", "a/../", "./", "/"):
        links = CountingMap(
            {RelPath(f"l{n}"): f"l{n + 1}/" + piece * (4000 // len(piece)) for n in range(41)}
        )
        with pytest.raises(PathEscape):
            resolve(path("l0"), links)
        assert links.bytes_requested <= MAX_STEPS * MAX_STEPS * 2


# -- the kernel as the oracle ------------------------------------------------------------------------

_LIBC = ctypes.CDLL(None, use_errno=True)
_RESOLVE_BENEATH, _NO_MAGICLINKS, _NO_XDEV = 0x08, 0x02, 0x01


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def resolve_by_kernel(root, rel):
    """Return the path that the kernel finds at `rel` inside `root`, or an error number."""
    how = _OpenHow(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_BENEATH | _NO_MAGICLINKS | _NO_XDEV)
    while True:
        fd = _LIBC.syscall(437, root, os.fsencode(rel) or b".", ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            break
        if ctypes.get_errno() != errno.EAGAIN:  # A concurrent rename disturbed the walk.
            return ctypes.get_errno()
    try:
        top, found = (Path(f"/proc/self/fd/{each}").readlink() for each in (root, fd))
        return str(found.relative_to(top)) if found != top else ""
    finally:
        os.close(fd)


NAMES = ("a", "b", "c.md", "d", "bad*")
FOLDERS = ("a", "a/d", "b", "b/a", "b/a/d")
SEGMENTS = st.sampled_from([*NAMES, *NAMES[:-1], *NAMES[:-1], "..", "..", ".", ""])
REALLY = st.sampled_from([*FOLDERS, *(f"{folder}/c.md" for folder in FOLDERS), "c.md"])
UPWARDS = st.tuples(st.integers(0, 2), REALLY).map(lambda way: "../" * way[0] + way[1])
TARGETS = st.one_of(
    *(st.lists(SEGMENTS, min_size=1, max_size=5).map("/".join).filter(bool), UPWARDS, UPWARDS),
    st.tuples(REALLY, st.integers(1, 2), REALLY).map(lambda way: f"{way[0]}/{'../' * way[1]}{way[2]}"),
)
PLACES = st.lists(st.sampled_from(NAMES[:-1]), min_size=1, max_size=3).map("/".join)
LINKS = st.lists(st.tuples(PLACES, TARGETS), min_size=1, max_size=8)
ENDS = st.lists(st.sampled_from([f"/{name}" for name in NAMES[:-1]]), max_size=2).map("".join)


def plant(base, wanted):
    """Create the links of `wanted` that fit together in `base`, and folders and files at free paths."""
    links = {}
    for rel, target in wanted:
        if not any(f"{rel}/".startswith(f"{each}/") or each.startswith(f"{rel}/") for each in links):
            links[rel] = target
            Path(base, rel).parent.mkdir(parents=True, exist_ok=True)
            Path(base, rel).symlink_to(target)
    for folder in ("", *FOLDERS):
        if not any(f"{folder}/".startswith(f"{each}/") for each in links):
            Path(base, folder).mkdir(parents=True, exist_ok=True)
            if not os.path.lexists(Path(base, folder, "c.md")):
                Path(base, folder, "c.md").write_text(folder)
    return links


@given(wanted=LINKS, end=ENDS, is_simple=st.booleans())
def test_links_resolve_exactly_as_the_kernel_resolves_them(wanted, end, is_simple):
    """If no target steps up after a name, both resolve to the same path."""
    if is_simple:
        wanted = [(place, target) for place, target in wanted if not has_inner_step_up(target)]
    with tempfile.TemporaryDirectory() as base:
        links, root = plant(base, wanted), os.open(base, os.O_PATH | os.O_DIRECTORY)
        try:
            for rel in (f"{link}{end}" for link in links):
                compare(base, links, rel, resolve_by_kernel(root, rel), is_simple)
        finally:
            os.close(root)


def compare(base, links, rel, found, is_simple):
    try:
        resolved = resolve(path(rel), links)
    except PathEscape:
        # If a path leaves the root after a missing part, the kernel stops at the missing part.
        assert found in {errno.EXDEV, errno.ELOOP, errno.ENOENT, errno.ENOTDIR}
        return
    except BadName:
        assert not isinstance(found, str)  # No file with an invalid or too deep name exists.
        return
    assert canonicalise(resolved.path.text, [Scope("user")]) == resolved.path
    if isinstance(found, str):
        assert resolved.path.rel == found
        assert os.path.realpath(Path(base, rel)) == os.path.realpath(Path(base, found))
        assert not resolved.is_directory or Path(base, found).is_dir()
        return
    # Resolved here and not found by the kernel: the file does not exist, or the path passes through something
    # missing and up again, which only a kernel can detect (L2).
    assert found in {errno.ENOENT, errno.ENOTDIR}
    there = Path(base, resolved.path.rel)
    is_there = there.is_dir() if resolved.is_directory else os.path.lexists(there)
    assert not is_there or (not is_simple and any(".." in target for target in links.values()))


def has_inner_step_up(target):
    names = [name for name in target.split("/") if name not in {"", "."}]
    return ".." in dropwhile("..".__eq__, names)
