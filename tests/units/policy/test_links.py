"""Where links lead beneath a root: as a table of shapes, and against the kernel over trees at random."""

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


def led(rel, links):
    """Where `rel` leads: its path, with a final slash where only a directory can stand."""
    found = resolve(path(rel), links)
    return found.path.rel + ("/" if found.is_directory else "")


def read(line):
    """The links of `a -> b, c -> d`."""
    return dict(link.split(" -> ") for link in line.split(", ")) if line else {}


SHAPES = """
no link: a.md = a.md | b.md -> c.md
a file in a folder: l.md = topic/a.md | l.md -> topic/a.md
seen from where it stands: t/l.md = t/a.md | t/l.md -> a.md
up and in again: t/l.md = a.md | t/l.md -> ../a.md
a folder, and on: t/a.md = real/a.md | t -> real
through the root: here/here/a.md = a.md | here -> .
a chain: a.md = d.md | a.md -> b.md, b.md -> t/c.md, t/c.md -> ../d.md
up from where it really stands: t/l.md = deep/a.md | t -> deep/er, deep/er/l.md -> ../a.md
up out of a folder that is a link: l.md = deep/a.md | l.md -> t/../a.md, t -> deep/er
up out of what is no link: l.md = a.md | l.md -> t/../a.md
empty and dot segments: l.md = t/a.md | l.md -> .//t/.///./a.md
a final slash: l.md = a.md/ | l.md -> a.md/
a final dot: l.md = t/ | l.md -> t/.
a final step up: l.md = t/ | l.md -> t/u/..
a final slash that only a link holds: l = a.md/ | l -> m/, m -> a.md
a name of another case: L.md = L.md | l.md -> a.md
the deepest name there is: l.md = 1/2/3/4/5/6/7/f.md | l.md -> 1/2/3/4/5/6/7/f.md
a name that is no link any more: t/l.md = t/l.md | t/l.md/x -> a.md
the scope:  = / | l.md -> a.md
a path without links: t/a.md = t/a.md |
"""
FORTY = {str(n): str(n + 1) for n in range(MAX_LINKS_FOLLOWED)}


def test_a_link_that_stays_beneath_the_root_is_resolved():
    for line in SHAPES.strip().splitlines():
        _, rel, expected, links = re.fullmatch(r"([^:]+): (\S*) = (\S+) \|(.*)", line).groups()
        assert led(rel, read(links.strip())) == expected, line
    assert led("0", FORTY) == str(MAX_LINKS_FOLLOWED)
    assert led("l", {"l": "./" * (MAX_STEPS - 2) + "a.md"}) == "a.md"
    with pytest.raises(PathEscape):
        led("l", {"l": "./" * (MAX_STEPS - 1) + "a.md"})


OUTSIDE = "/etc/passwd /srv/memory/user/a.md / //server/share /proc/self/cwd .. ../outside/secret.md"
LEAVING = "../project/a.md ../user/a.md t/../../a.md l l/l a*b/../../x"
CHAINS = """l -> t/../../a.md, t -> deep/er/..|l -> t/m, t/m -> /etc|l -> t/m, t/m -> ../../x|
l -> t/m, t/m -> ../l|l -> m/\udcff, m -> /"""
ESCAPES = [
    *({"l": target} for target in ("", *f"{OUTSIDE} {LEAVING}".split())),
    *map(read, CHAINS.replace("\n", "").split("|")),
    {"l": "0", **FORTY},
]


@pytest.mark.threat("T-PATH-14", control="links_confined")
def test_a_link_that_leaves_or_does_not_end_is_an_escape():
    for links in ESCAPES:
        for rel in ("l", "l/a.md"):
            with pytest.raises(PathEscape) as caught:
                resolve(path(rel), links)
            assert (caught.value.via, caught.value.requested) == (Via.SYMLINK, f"user/{rel}"), links


BAD = [
    *("a*b.md", "\udcff.md", "a\nb.md", "a\0b", "e\u0301.md", "con.md", "a*b/../a.md", "..\\a.md", "C:/a.md"),
    *("x" * 256, "/".join(["x" * 200] * 6), "1/2/3/4/5/6/7/8/f.md", "t/" * 12 + "../" * 11 + "a.md"),
]


def test_a_link_to_what_has_no_name_here_is_a_bad_name_that_does_not_tell_it():
    told = "user/t/l.md points to a name that is not allowed in this memory; use another file"
    for target in BAD:
        with pytest.raises(BadName) as caught:
            resolve(path("t/l.md"), {"t/l.md": target})
        assert (target, str(caught.value)) == (target, told)


class Counted(dict):
    """A map that counts how often it is asked, by how many bytes."""

    asked = 0

    def get(self, key, default=None):
        self.asked += len(key)
        return super().get(key, default)


def test_a_planted_chain_of_endless_targets_costs_no_more_than_a_short_one():
    """Each link leads on to the next one, and leaves 4 KiB of names to walk behind."""
    for piece in ("a/", "a/../", "./", "/"):
        links = Counted({RelPath(f"l{n}"): f"l{n + 1}/" + piece * (4000 // len(piece)) for n in range(41)})
        with pytest.raises(PathEscape):
            resolve(path("l0"), links)
        assert links.asked <= MAX_STEPS * MAX_STEPS * 2


# -- the kernel as the oracle ------------------------------------------------------------------------

_LIBC = ctypes.CDLL(None, use_errno=True)
_BENEATH, _NO_MAGICLINKS, _NO_XDEV = 0x08, 0x02, 0x01


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def kernel(root, rel):
    """What the kernel finds at `rel` beneath `root`, following links: a path, or an error number."""
    how = _How(os.O_PATH | os.O_CLOEXEC, 0, _BENEATH | _NO_MAGICLINKS | _NO_XDEV)
    while True:
        fd = _LIBC.syscall(437, root, os.fsencode(rel) or b".", ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            break
        if ctypes.get_errno() != errno.EAGAIN:  # A rename anywhere disturbed the walk.
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
    """The links of `wanted` that fit together, beneath `base`, and folders and files where there is room."""
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
def test_what_the_kernel_finds_beneath_the_root_is_found_and_nothing_else(wanted, end, is_simple):
    """Where no target steps up after a name, ours resolves exactly what the kernel finds."""
    if is_simple:
        wanted = [(place, target) for place, target in wanted if not steps_up(target)]
    with tempfile.TemporaryDirectory() as base:
        links, root = plant(base, wanted), os.open(base, os.O_PATH | os.O_DIRECTORY)
        try:
            for rel in (f"{link}{end}" for link in links):
                compare(base, links, rel, kernel(root, rel), is_simple)
        finally:
            os.close(root)


def compare(base, links, rel, found, is_simple):
    try:
        ours = resolve(path(rel), links)
    except PathEscape:
        # Where a way that leads out first passes something that is missing, the kernel stops there.
        assert found in {errno.EXDEV, errno.ELOOP, errno.ENOENT, errno.ENOTDIR}
        return
    except BadName:
        assert not isinstance(found, str)  # Nothing of a bad name is there, nor anything as deep.
        return
    assert canonicalise(ours.path.text, [Scope("user")]) == ours.path
    if isinstance(found, str):
        assert ours.path.rel == found
        assert os.path.realpath(Path(base, rel)) == os.path.realpath(Path(base, found))
        assert not ours.is_directory or Path(base, found).is_dir()
        return
    # Ours resolves and the kernel finds nothing: nothing of that kind is there, or the way passes
    # through something missing and up again, which only a kernel can see (L2).
    assert found in {errno.ENOENT, errno.ENOTDIR}
    there = Path(base, ours.path.rel)
    is_there = there.is_dir() if ours.is_directory else os.path.lexists(there)
    assert not is_there or (not is_simple and any(".." in target for target in links.values()))


def steps_up(target):
    names = [name for name in target.split("/") if name not in {"", "."}]
    return ".." in dropwhile("..".__eq__, names)
