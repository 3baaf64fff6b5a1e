"""What a root promises, over both resolvers: `muniment.confine.root`, `openat2`, `walk`."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from kit.confine.trees import CANARY, LINKS, OPERATIONS, RESOLVERS, exchange, plant, plant_link, snapshot
from muniment.confine import root as subject
from muniment.confine import root as walk
from muniment.confine import syscalls
from muniment.confine.root import Examined, Listed, Root, WalkResolver, choose_resolver, encoded
from muniment.confine.syscalls import EXAMINE, LIST, READ, Openat2Resolver
from muniment.errors import (
    BadName,
    NotAFile,
    NotFound,
    PathEscape,
    PlatformUnsupported,
    TooLarge,
    Unreadable,
)
from muniment.names import MAX_FILE_BYTES, MAX_PATH_BYTES, Via


@pytest.fixture
def trees(tmp_path):
    return plant(tmp_path)


@pytest.fixture(params=RESOLVERS)
def root(trees, request):
    made = trees.root(request.param)
    yield made
    os.close(made.fd)


@pytest.fixture(params=OPERATIONS)
def operation(request):
    return OPERATIONS[request.param]


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


class Failing:
    """A resolver on a system that always answers with one error."""

    name = "failing"

    def __init__(self, number):
        self.number = number

    def open(self, _dir_fd, _path, _purpose):
        raise OSError(self.number, os.strerror(self.number))


# What is honest works.


def test_a_file_is_read_whole(root):
    assert root.read_bytes("note.md") == b"inside note"
    assert root.read_bytes("topic/deep/two.md") == b"inside two"


def test_an_empty_file_is_read(root, trees):
    (trees.inside / "empty.md").touch()
    assert root.read_bytes("empty.md") == b""


def test_an_open_file_tells_what_it_is(root, trees):
    status = (trees.inside / "note.md").stat()
    with root.open_file("note.md") as file:
        assert file.size == status.st_size
        assert (os.fstat(file.fd).st_dev, os.fstat(file.fd).st_ino) == (status.st_dev, status.st_ino)
    file.close()
    assert file.fd == -1


def test_a_directory_is_listed_in_order_with_kinds(root, trees):
    (trees.inside / "a-link").symlink_to(trees.outside)
    os.mkfifo(trees.inside / "b-fifo")
    assert root.list_directory("") == (
        Listed("a-link", "other"),
        Listed("b-fifo", "other"),
        Listed("folder.md", "directory"),
        Listed("note.md", "file"),
        Listed("topic", "directory"),
    )
    assert root.list_directory("topic/deep") == (Listed("two.md", "file"),)


def test_a_listing_starts_anew_each_time(root):
    assert root.list_directory("topic") == root.list_directory("topic") != ()


def test_listings_that_work_or_fail_leave_no_descriptor_behind(root, trees, monkeypatch):
    (trees.inside / "topic" / "deep" / "three.md").touch()
    before = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(3):
        assert root.list_directory("topic") != ()
        with pytest.raises(NotAFile):
            root.list_directory("note.md")
        with pytest.raises(NotFound):
            root.list_directory("gone")
    monkeypatch.setattr("muniment.confine.root.MAX_ENTRIES", 1)
    with pytest.raises(TooLarge):
        root.list_directory("topic/deep")
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_a_listing_longer_than_one_buffer_is_complete(root, trees):
    expected = sorted(f"{number:04}-{'x' * 100}.md" for number in range(600))
    for name in expected:
        (trees.inside / "topic" / "deep" / name).touch()
    assert [entry.name for entry in root.list_directory("topic/deep")] == [*expected, "two.md"]


def test_names_that_are_not_utf_8_are_listed_and_lead_to_their_files(root, trees):
    Path(os.fsdecode(os.fsencode(trees.inside) + b"/topic/deep/\xff.md")).write_bytes(b"odd")
    name = root.list_directory("topic/deep")[-1].name
    assert name == "\udcff.md"
    assert root.read_bytes(f"topic/deep/{name}") == b"odd"


def test_examining_tells_kind_and_size_without_reading(root):
    assert root.examine("note.md") == Examined("file", 11)
    assert root.examine("topic").kind == "directory"
    assert root.examine("").kind == "directory"


def test_nothing_at_a_path_is_none_when_examined_and_not_found_otherwise(root):
    for rel in ("missing.md", "missing/one.md", "note.md/below.md", "x" * 256):
        assert root.examine(rel) is None
        for reading in (root.read_bytes, root.list_directory):
            with pytest.raises(NotFound):
                reading(rel)


def test_names_that_begin_with_a_dot_are_names(root, trees):
    (trees.inside / "topic" / ".hidden").mkdir()
    (trees.inside / "topic" / ".hidden" / "...").write_text("dots")
    assert root.read_bytes("topic/.hidden/...") == b"dots"


# Links, at whatever place and whatever they lead to, are not followed.


@pytest.mark.threat("T-PATH-03", control="walk_checks")
@pytest.mark.threat("T-PATH-03", control="openat2_resolve")
@pytest.mark.parametrize("shape", LINKS)
def test_no_operation_follows_a_link(root, trees, operation, shape):
    rel = plant_link(trees, shape)
    before, held = snapshot(trees.outside, trees.other), open_descriptors()
    with pytest.raises(PathEscape) as caught:
        operation(root, rel)
    assert caught.value.via is Via.SYMLINK
    assert CANARY not in str(caught.value).replace(rel, "")
    assert snapshot(trees.outside, trees.other) == before
    assert open_descriptors() == held


def open_after_normpath(trees, rel):
    """What a checked string is worth: the usual code without `realpath`."""
    full = os.path.normpath(trees.inside / rel)
    if os.path.commonpath((full, trees.inside)) != str(trees.inside):
        raise PermissionError
    return Path(full).read_bytes()


def open_after_realpath(trees, rel, between=lambda: None):
    """The usual code with `realpath`; `between` is the moment that it leaves."""
    full = os.path.realpath(trees.inside / rel)
    if os.path.commonpath((full, trees.inside)) != str(trees.inside):
        raise PermissionError
    between()
    return Path(full).read_bytes()


@pytest.mark.parametrize(
    "shape", [shape for shape, (_, _, rel) in LINKS.items() if rel.endswith(f"{CANARY}.md")]
)
def test_the_table_of_links_catches_a_reader_that_checks_strings(trees, shape):
    assert CANARY.encode() in open_after_normpath(trees, plant_link(trees, shape))


def test_hard_links_and_swaps_catch_a_reader_that_resolves_first(trees):
    os.link(trees.outside / f"{CANARY}.md", trees.inside / "hard.md")
    assert CANARY.encode() in open_after_realpath(trees, "hard.md")
    (trees.inside / "swap").symlink_to(trees.outside)
    (trees.inside / "topic" / "note.md").write_text("inside")
    leaked = open_after_realpath(
        trees, "topic/note.md", lambda: exchange(trees.inside / "swap", trees.inside / "topic")
    )
    assert CANARY.encode() in leaked


# What is no file of its own is refused, and nothing waits for it.


@pytest.mark.threat("T-PATH-06", control="one_name")
def test_a_hard_link_is_an_escape(root, trees, operation):
    os.link(trees.outside / f"{CANARY}.md", trees.inside / "hard.md")
    with pytest.raises(PathEscape) as caught:
        operation(root, "hard.md")
    assert caught.value.via is Via.HARDLINK


@pytest.mark.threat("T-PATH-08", control="without_waiting")
@pytest.mark.threat("T-PATH-08", control="regular_only")
def test_a_fifo_is_an_escape_and_nobody_waits_for_its_writer(root, trees, operation):
    os.mkfifo(trees.inside / "fifo.md")
    with pytest.raises(PathEscape) as caught:
        operation(root, "fifo.md")
    assert caught.value.via is Via.SPECIAL


@pytest.mark.threat("T-PATH-08", control="regular_only")
def test_a_socket_is_an_escape(root, trees, operation, monkeypatch):
    monkeypatch.chdir(trees.inside)  # the path of a socket may be no longer than 108 bytes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.md")
    with pytest.raises(PathEscape) as caught:
        operation(root, "socket.md")
    assert caught.value.via is Via.SPECIAL


def test_a_device_is_an_escape(root, trees, operation):
    device = trees.inside / "zero.md"
    try:
        os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only a privileged process can make a device")
    if os.statvfs(device).f_flag & os.ST_NODEV:
        pytest.skip("devices do not work on this file system")
    with pytest.raises(PathEscape) as caught:
        operation(root, "zero.md")
    assert caught.value.via is Via.SPECIAL


def test_a_directory_with_the_name_of_a_file_is_no_file(root):
    for rel in ("folder.md", ""):
        with pytest.raises(NotAFile):
            root.read_bytes(rel)


def test_a_file_cannot_be_listed(root):
    with pytest.raises(NotAFile):
        root.list_directory("note.md")


def test_a_file_removed_while_it_was_opened_is_not_found(root, trees):
    class Slow:
        name = "slow"

        def open(self, dir_fd, path, purpose):
            fd = root.resolver.open(dir_fd, path, purpose)
            (trees.inside / "note.md").unlink()
            return fd

    slow = Root(root.scope, root.fd, Slow())
    with pytest.raises(NotFound):
        slow.read_bytes("note.md")
    (trees.inside / "note.md").touch()
    assert slow.examine("note.md") is None


# Text is refused before any system call, and never normalised.


@pytest.mark.threat("T-PATH-01", control="root_text")
@pytest.mark.parametrize(
    ("rel", "via"),
    [
        ("nul\0.md", Via.NUL),
        ("\0", Via.NUL),
        ("/../\0", Via.NUL),
        ("/etc/x", Via.ABSOLUTE),
        ("/", Via.ABSOLUTE),
        ("//note.md", Via.ABSOLUTE),
        ("/../note.md", Via.ABSOLUTE),
        ("..", Via.DOTDOT),
        ("../outside/note.md", Via.DOTDOT),
        ("topic/..", Via.DOTDOT),
        ("topic/../note.md", Via.DOTDOT),
        ("topic//../note.md", Via.DOTDOT),
        ("../" * 1000, Via.DOTDOT),
    ],
)
def test_text_that_leads_outwards_is_an_escape_before_any_call(operation, rel, via):
    with pytest.raises(PathEscape) as caught:
        operation(Root("user", -1, Failing(errno.EIO)), rel)
    assert caught.value.via is via
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "rel",
    [
        ".",
        "./note.md",
        "topic/.",
        "topic/./one.md",
        "topic//one.md",
        "topic/",
        "\ud800.md",
        "x" * (MAX_PATH_BYTES + 1),
        "é" * (MAX_PATH_BYTES // 2 + 1),
    ],
)
def test_text_that_is_no_path_is_a_bad_name_before_any_call(operation, rel):
    with pytest.raises(BadName) as caught:
        operation(Root("user", -1, Failing(errno.EIO)), rel)
    assert "\n" not in str(caught.value)


def test_text_is_passed_on_as_it_is():
    assert encoded("") == b"."
    assert encoded("a\\..\\b") == b"a\\..\\b"
    assert encoded("e\u0301.md") != encoded("\u00e9.md")
    assert len(encoded("x" * MAX_PATH_BYTES)) == MAX_PATH_BYTES


# Limits.


def test_a_file_above_the_limit_is_refused_before_it_is_read(root, trees, monkeypatch):
    with (trees.inside / "sparse.md").open("wb") as file:
        file.truncate(1 << 40)
    monkeypatch.setattr(os, "pread", None)
    with pytest.raises(TooLarge):
        root.read_bytes("sparse.md")
    with pytest.raises(TooLarge):
        root.read_bytes("note.md", 10)


@pytest.mark.threat("T-PATH-08", control="size_limit")
def test_no_limit_is_above_the_hard_one(root, trees):
    with (trees.inside / "sparse.md").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(TooLarge):
        root.read_bytes("sparse.md", 1 << 60)


def test_a_file_exactly_at_the_limit_is_read(root):
    assert root.read_bytes("note.md", 11) == b"inside note"


@pytest.mark.threat("T-PATH-08", control="size_limit")
def test_a_file_that_grows_while_it_is_read_is_refused_at_the_limit(root, trees, monkeypatch):
    real, asked = os.pread, []

    def growing(fd, count, position):
        asked.append(count)
        with (trees.inside / "note.md").open("ab") as file:
            file.write(b"+" * 1000)
        return real(fd, count, position)

    monkeypatch.setattr(os, "pread", growing)
    with pytest.raises(TooLarge):
        root.read_bytes("note.md", 100)
    assert sum(asked) <= 101


def test_a_system_that_reads_in_pieces_gives_the_whole_file(root, monkeypatch):
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, position: real(fd, min(count, 3), position))
    assert root.read_bytes("note.md") == b"inside note"


def test_a_directory_with_too_many_names_is_refused(root, monkeypatch):
    monkeypatch.setattr(subject, "MAX_ENTRIES", 3)
    assert len(root.list_directory("")) == 3
    monkeypatch.setattr(subject, "MAX_ENTRIES", 2)
    with pytest.raises(TooLarge):
        root.list_directory("")


# File systems and moments that say less, or fail.


def test_kinds_are_found_without_following_where_a_listing_has_none(root, trees, monkeypatch):
    (trees.inside / "link").symlink_to(trees.outside)
    os.mkfifo(trees.inside / "fifo")
    expected = root.list_directory("")
    names = [os.fsencode(entry.name) for entry in expected]
    monkeypatch.setattr(subject, "entries", lambda _fd: [(name, 0) for name in (*names, b"gone")])
    assert root.list_directory("") == expected


def test_a_removed_root_holds_nothing(root, trees, tmp_path):
    trees.inside.rename(tmp_path / "moved")
    assert root.read_bytes("note.md") == b"inside note"
    for rel in ("topic/deep/two.md", "topic/one.md", "note.md"):
        (tmp_path / "moved" / rel).unlink()
    for rel in ("topic/deep", "topic", "folder.md", ""):
        (tmp_path / "moved" / rel).rmdir()
    assert root.examine("note.md") is None
    assert root.examine("") is None
    for reading in (root.read_bytes, root.list_directory):
        with pytest.raises(NotFound):
            reading("note.md")
    with pytest.raises(NotFound):
        root.list_directory("")


@pytest.mark.parametrize(
    ("number", "error", "text"),
    [
        (errno.ELOOP, PathEscape, "symlink"),
        (errno.EXDEV, PathEscape, "mount"),
        (errno.ENXIO, PathEscape, "special"),
        (errno.ENODEV, PathEscape, "special"),
        (errno.ENOENT, NotFound, "user/note.md"),
        (errno.ENOTDIR, NotFound, "user/note.md"),
        (errno.ENAMETOOLONG, NotFound, "user/note.md"),
        (errno.EACCES, Unreadable, "EACCES"),
        (errno.EPERM, Unreadable, "EPERM"),
        (errno.EIO, Unreadable, "EIO"),
        (errno.EMFILE, Unreadable, "EMFILE"),
        (99_999, Unreadable, "unknown error"),
    ],
)
def test_what_the_system_refuses_is_told_in_one_line_without_a_host_path(operation, number, error, text):
    failing = Root("user", -1, Failing(number))
    if error is NotFound and operation is OPERATIONS["examine"]:
        assert operation(failing, "note.md") is None
        return
    with pytest.raises(error, match=text) as caught:
        operation(failing, "note.md")
    assert "\n" not in str(caught.value)


def test_a_disk_that_fails_while_reading_is_unreadable(root, monkeypatch):
    def failing(*_args):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", failing)
    with pytest.raises(Unreadable, match="EIO"):
        root.read_bytes("note.md")


def test_a_descriptor_that_cannot_be_asked_is_closed(root, monkeypatch):
    def failing(_fd):
        raise OSError(errno.EIO, "Input/output error")

    held = open_descriptors()
    monkeypatch.setattr(subject, "fstat", failing)
    with pytest.raises((OSError, Unreadable), match=r"Input/output|EIO"):
        root.read_bytes("note.md")
    assert open_descriptors() == held


def test_names_that_do_not_print_do_not_reach_the_message(root):
    with pytest.raises(NotFound) as caught:
        root.read_bytes("a\nb\u202e.md")
    assert "\n" not in str(caught.value)
    assert "\u202e" not in str(caught.value)


# The resolvers themselves.


def test_no_descriptor_survives_an_execution(root):
    for rel, purpose in (("note.md", READ), ("topic", LIST), ("note.md", EXAMINE)):
        fd = root.resolver.open(root.fd, rel.encode(), purpose)
        assert not os.get_inheritable(fd)
        os.close(fd)


def test_the_purposes_are_a_closed_set():
    with pytest.raises(KeyError):
        Openat2Resolver().open(-1, b"note.md", os.O_RDWR)


def disturbed(monkeypatch, number, times):
    calls = []
    real = syscalls._openat2

    def call(*args):
        calls.append(args)
        if len(calls) > times:
            return real(*args)
        syscalls.ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(syscalls, "_openat2", call)
    return calls


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EINTR])
def test_a_disturbed_walk_is_tried_again(trees, monkeypatch, number):
    made = trees.root("openat2")
    disturbed(monkeypatch, number, 3)
    assert made.read_bytes("note.md") == b"inside note"
    os.close(made.fd)


def test_a_walk_that_is_always_disturbed_ends(trees, monkeypatch):
    made = trees.root("openat2")
    calls = disturbed(monkeypatch, errno.EAGAIN, 10**6)
    with pytest.raises(Unreadable, match="EAGAIN"):
        made.read_bytes("note.md")
    assert len(calls) == syscalls.ATTEMPTS
    os.close(made.fd)


@pytest.mark.parametrize(
    ("number", "resolver"),
    [(errno.EBADF, Openat2Resolver), (errno.ENOSYS, WalkResolver), (errno.EPERM, WalkResolver)],
)
def test_the_resolver_is_what_the_kernel_offers(monkeypatch, number, resolver):
    disturbed(monkeypatch, number, 1)
    assert isinstance(choose_resolver(), resolver)


def test_an_unknown_machine_is_refused(monkeypatch):
    def unknown():
        raise PlatformUnsupported("no")

    monkeypatch.setattr(subject, "require_known_machine", unknown)
    with pytest.raises(PlatformUnsupported):
        choose_resolver()


def test_the_walk_refuses_another_device_at_any_component(trees, monkeypatch):
    made = trees.root("walk")
    real = walk.fstat
    for number in (1, 2):
        asked = []

        def elsewhere(fd, number=number, asked=asked):
            asked.append(fd)
            found = real(fd)
            # The first question is about the root itself.
            return SimpleNamespace(st_dev=found.st_dev + (len(asked) > number), st_mode=found.st_mode)

        held = open_descriptors()
        monkeypatch.setattr(walk, "fstat", elsewhere)
        with pytest.raises(PathEscape) as caught:
            made.read_bytes("topic/one.md")
        assert caught.value.via is Via.MOUNT
        assert open_descriptors() == held
    os.close(made.fd)
