"""Guarantees of a root with both resolvers: `muniment.kernel.root`, `openat2`, `walk`."""

import contextlib
import errno
import itertools
import os
import socket
import stat
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from kit.catching import catch_error
from kit.descriptors import assert_descriptors_closed
from kit.kernel.trees import CANARY, LINKS, OPERATIONS, RESOLVERS, FailingResolver, create_link, create_trees
from kit.memories import take_snapshot
from kit.paths import make_path
from muniment import errors
from muniment.errors import BadName, ManagedMemoryUnavailable, NotFound, PathEscape, Unreadable
from muniment.kernel import listing, syscalls, walk
from muniment.kernel import root as subject
from muniment.kernel.listing import OpenDirectory
from muniment.kernel.names import MAX_FILE_BYTES, MAX_PATH_BYTES, Via
from muniment.kernel.root import MAX_ENTRIES, ListedName, PathStatus, Root, encode_name
from muniment.kernel.syscalls import EXAMINE, LIST, READ, Openat2Resolver
from muniment.sandbox.tools import links
from muniment.sandbox.tools.links import read_links

user = partial(make_path, "user")


def make_failing_call(number):
    """Return a system call that always fails."""

    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    return fail


def find_escape_way(root, rel):
    """Return the kind of escape that every operation reports; check that nothing stays open."""
    ways = set()
    for operation in OPERATIONS.values():
        with assert_descriptors_closed(), pytest.raises(PathEscape) as caught:
            operation(root, rel)
        ways.add(caught.value.via)
        message = str(caught.value)
        assert "\n" not in message
        assert CANARY not in message.replace(rel, "")
    (way,) = ways
    return way


# Ordinary use.


def test_file_is_read_completely_with_its_status(root, trees, monkeypatch):
    (trees.inside / "empty.md").touch()
    assert root.read_bytes(user("note.md")) == root.read_bytes(user("note.md"), 11) == b"inside note"
    assert root.read_bytes(user("topic/deep/two.md")) == b"inside two"
    assert root.read_bytes(user("empty.md")) == b""
    status = (trees.inside / "note.md").stat()
    with root.open_file(user("note.md")) as file:
        assert file.size == status.st_size
        assert (os.fstat(file.fd).st_dev, os.fstat(file.fd).st_ino) == (status.st_dev, status.st_ino)
    file.close()
    assert file.fd == -1
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, position: real(fd, min(count, 3), position))
    assert root.read_bytes(user("note.md")) == b"inside note"


def test_directory_listing_is_sorted_and_has_kinds(root, trees, monkeypatch):
    (trees.inside / "a-link").symlink_to(trees.outside)
    os.mkfifo(trees.inside / "b-fifo")
    expected = (
        *(ListedName("a-link", "other"), ListedName("b-fifo", "other"), ListedName("folder.md", "directory")),
        *(ListedName("note.md", "file"), ListedName("topic", "directory")),
    )
    assert root.list_directory(user("")) == root.list_directory(user("")) == expected
    assert root.list_directory(user("topic/deep")) == (ListedName("two.md", "file"),)
    names = [os.fsencode(entry.name) for entry in expected]
    # A file system without kinds: they are read without following links.
    monkeypatch.setattr(subject, "iterate_entries", lambda _fd: [(name, 0) for name in (*names, b"gone")])
    assert root.list_directory(user("")) == expected


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.ENOMEM])
def test_listing_fails_if_kind_cannot_be_read(root, monkeypatch, number):
    monkeypatch.setattr(subject, "iterate_entries", lambda _fd: [(b"note.md", 0)])
    failing_root = replace(root, resolver=FailingResolver({b"note.md": number}, root.resolver))
    catch_error(Unreadable, failing_root.list_directory, user(""))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOENT, errno.ENXIO])
def test_error_while_reading_an_open_file_is_unreadable(root, monkeypatch, number):
    monkeypatch.setattr(os, "pread", make_failing_call(number))
    catch_error(Unreadable, root.read_bytes, user("note.md"))


def test_error_of_fstat_on_an_open_file_is_unreadable(root, monkeypatch):
    monkeypatch.setattr(subject, "fstat", make_failing_call(errno.EIO))
    catch_error(Unreadable, root.read_bytes, user("note.md"))


def test_unreadable_status_is_not_reported_as_absence(root, monkeypatch):
    with OpenDirectory(root, user("")) as opened:
        assert opened.read_status("missing.md") is None
        monkeypatch.setattr(os, "stat", make_failing_call(errno.EIO))
        catch_error(Unreadable, opened.read_status, "note.md")


def test_listing_longer_than_one_buffer_is_complete(root, trees):
    expected = sorted(f"{number:04}-{'x' * 100}.md" for number in range(600))
    for name in expected:
        (trees.inside / "topic" / "deep" / name).touch()
    assert [entry.name for entry in root.list_directory(user("topic/deep"))] == [*expected, "two.md"]


def test_names_not_utf8_or_starting_with_dot_are_readable(root, trees):
    Path(os.fsdecode(os.fsencode(trees.inside) + b"/topic/deep/\xff.md")).write_bytes(b"odd")
    name = root.list_directory(user("topic/deep"))[-1].name
    assert name == "\udcff.md"
    with OpenDirectory(root, user("topic/deep")) as opened:
        assert opened.read(name)[0] == b"odd"
    (trees.inside / "topic" / ".hidden").mkdir()
    (trees.inside / "topic" / ".hidden" / "..x").write_text("dots")
    assert root.read_bytes(user("topic/.hidden/..x")) == b"dots"


def test_examine_returns_kind_and_size_or_none_if_missing(root):
    assert root.examine(user("note.md")) == PathStatus("file", 11)
    assert root.examine(user("topic")).kind == root.examine(user("")).kind == "directory"
    for rel in ("missing.md", "missing/one.md", "note.md/below.md", "x" * 255):
        assert root.examine(user(rel)) is None
        for reading in (root.read_bytes, root.list_directory):
            catch_error(NotFound, reading, user(rel))
    with OpenDirectory(root, user("")) as opened:
        for name in ("x" * 256, "a\nb\u202e.md"):
            assert str(catch_error(NotFound, opened.read, name)).isprintable()


# Links are not followed, wherever they are and wherever they lead.


@pytest.mark.threat("T-PATH-03", control="walk_checks")
@pytest.mark.threat("T-PATH-03", control="openat2_resolve")
def test_no_operation_follows_links_or_reveals_targets(tmp_path):
    for number, (shape, resolver) in enumerate(itertools.product(LINKS, RESOLVERS)):
        trees = create_trees(tmp_path / str(number))
        rel, root = create_link(trees, shape), trees.open_root(resolver)
        before = take_snapshot(trees.outside, trees.other)
        assert find_escape_way(root, rel) is Via.SYMLINK, (shape, resolver)
        catch_error((PathEscape, NotFound), OpenDirectory, root, user(rel))
        parent, _, last = rel.rpartition("/")
        with contextlib.suppress(PathEscape), OpenDirectory(root, user(parent)) as opened:
            catch_error(PathEscape, opened.read, last)
        name, target, _ = LINKS[shape]
        expected = {name: "/" if target.startswith(("{", "/")) else target}
        assert read_links(root) == expected | ({"second.md": "/"} if "chain" in shape else {})
        assert take_snapshot(trees.outside, trees.other) == before
        os.close(root.fd)


# Hard links and special files are rejected without waiting.


@pytest.mark.threat("T-PATH-06", control="one_name")
def test_hard_link_is_an_escape(root, trees):
    os.link(trees.outside / f"{CANARY}.md", trees.inside / "hard.md")
    assert find_escape_way(root, "hard.md") is Via.HARDLINK


@pytest.mark.threat("T-PATH-08", control="without_waiting")
@pytest.mark.threat("T-PATH-08", control="regular_only")
def test_special_files_are_escapes_without_waiting(root, trees, monkeypatch):
    os.mkfifo(trees.inside / "fifo.md")
    assert find_escape_way(root, "fifo.md") is Via.SPECIAL
    monkeypatch.chdir(trees.inside)  # the path of a socket may be no longer than 108 bytes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.md")
    assert find_escape_way(root, "socket.md") is Via.SPECIAL
    try:
        os.mknod("zero.md", 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        return  # only a privileged process can make a device
    if not os.statvfs("zero.md").f_flag & os.ST_NODEV:
        assert find_escape_way(root, "zero.md") is Via.SPECIAL


def test_directory_is_not_read_and_file_is_not_listed(root):
    for operation, rel in (("read", "folder.md"), ("read", ""), ("list", "note.md")):
        catch_error(errors.NotAFile, OPERATIONS[operation], root, rel)


def test_file_removed_while_opened_is_not_found(root, trees):
    def open_then_remove(*what):
        fd = root.resolver.open(*what)
        (trees.inside / "note.md").unlink()
        return fd

    slow = Root(root.scope, root.fd, SimpleNamespace(name="slow", open=open_then_remove))
    catch_error(NotFound, slow.read_bytes, user("note.md"))
    (trees.inside / "note.md").touch()
    assert slow.examine(user("note.md")) is None


# Text is parsed before any system call; only paths of the root's scope are accepted.

OUTWARDS = {
    Via.NUL: ["nul\0.md", "\0", "/../\0"],
    Via.ABSOLUTE: ["/etc/x", "/", "//note.md"],
    Via.DOTDOT: [
        *("..", "../outside/note.md", "topic/..", "topic/../note.md", "topic//../note.md"),
        *("/../note.md", "../" * 300),
    ],
}
INVALID_PATHS = [
    *(".", "./note.md", "topic/.", "topic/./one.md", "topic//one.md", "topic/", "\ud800.md"),
    *("x" * (MAX_PATH_BYTES + 1), "é" * (MAX_PATH_BYTES // 2 + 1), "../" * MAX_PATH_BYTES),
]


@pytest.mark.threat("T-PATH-01", control="checked_paths")
def test_escaping_or_invalid_text_is_rejected_before_syscalls():
    failing_root = Root("user", -1, FailingResolver(errno.EIO))
    for via, rels in OUTWARDS.items():
        for rel in rels:
            assert find_escape_way(failing_root, rel) is via, rel
    for rel, operation in itertools.product(INVALID_PATHS, OPERATIONS.values()):
        caught = catch_error(BadName, operation, failing_root, rel)
        assert "\n" not in str(caught)


def test_text_or_path_of_other_scope_is_rejected():
    failing_root = Root("user", -1, FailingResolver(errno.EIO))
    text = SimpleNamespace(scope="user", rel="note.md", text="user/note.md")
    opening = partial(OpenDirectory, failing_root)
    for act in (
        failing_root.open_file,
        failing_root.read_bytes,
        failing_root.list_directory,
        failing_root.examine,
        opening,
    ):
        for wrong in ("note.md", "", b"note.md", Path("note.md"), text):
            catch_error(TypeError, act, wrong)
        catch_error(
            ValueError,
            act,
            make_path("project", "note.md"),
            match="project is not the scope of this root, user",
        )


def test_path_and_name_are_encoded_unchanged(root):
    assert root.encode_path(user("")) == b"."
    assert root.encode_path(user("topic/\u00e9.md")) == b"topic/\xc3\xa9.md"
    assert encode_name("a\\..\\b") == b"a\\..\\b"
    assert encode_name("e\u0301.md") != encode_name("\u00e9.md")
    assert encode_name("\udcff") == b"\xff"
    assert "\n" not in str(catch_error(BadName, encode_name, "\ud800\n"))


# Limits.


@pytest.mark.threat("T-PATH-08", control="size_limit")
def test_file_over_size_limit_is_rejected_unread(root, trees, monkeypatch):
    monkeypatch.setattr(os, "pread", lambda *_: pytest.fail("it was read"))
    for size, limits in ((1 << 40, []), (MAX_FILE_BYTES + 1, [1 << 60]), (11, [10])):
        os.truncate(trees.inside / "note.md", size)
        catch_error(errors.TooLarge, root.read_bytes, user("note.md"), *limits)


@pytest.mark.threat("T-PATH-08", control="size_limit")
def test_file_growing_over_limit_while_read_is_rejected(root, trees, monkeypatch):
    real, counts = os.pread, []

    def read_growing_file(fd, count, position):
        counts.append(count)
        with (trees.inside / "note.md").open("ab") as file:
            file.write(b"+" * 1000)
        return real(fd, count, position)

    monkeypatch.setattr(os, "pread", read_growing_file)
    catch_error(errors.TooLarge, root.read_bytes, user("note.md"), 100)
    assert sum(counts) <= 101


def test_listings_leave_no_descriptor_open(root, monkeypatch):
    with assert_descriptors_closed():
        for rel, error in (("note.md", errors.NotAFile), ("gone", NotFound)):
            catch_error(error, root.list_directory, user(rel))
        monkeypatch.setattr(subject, "MAX_ENTRIES", 3)
        assert len(root.list_directory(user(""))) == 3
        monkeypatch.setattr(subject, "MAX_ENTRIES", 2)
        catch_error(errors.TooLarge, root.list_directory, user(""))


# Changing file systems and system errors.


def test_removed_root_is_empty(root, trees, tmp_path):
    trees.inside.rename(tmp_path / "moved")
    assert root.read_bytes(user("note.md")) == b"inside note"
    for rel in ("topic/deep/two.md", "topic/one.md", "note.md"):
        (tmp_path / "moved" / rel).unlink()
    for rel in ("topic/deep", "topic", "folder.md", ""):
        (tmp_path / "moved" / rel).rmdir()
    assert root.examine(user("note.md")) is root.examine(user("")) is None
    for operation, rel in (("read", "note.md"), ("list", "note.md"), ("list", "")):
        catch_error(NotFound, OPERATIONS[operation], root, rel)


SYSTEM_ERRORS = [
    *((errno.ELOOP, PathEscape, "symlink"), (errno.EXDEV, PathEscape, "mount")),
    *((errno.ENXIO, PathEscape, "special"), (errno.ENODEV, PathEscape, "special")),
    *((number, NotFound, "user/note.md") for number in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)),
    *((getattr(errno, name), errors.Unreadable, name) for name in ("EACCES", "EPERM", "EIO", "EMFILE")),
    (99_999, errors.Unreadable, "unknown error"),
]


def test_system_errors_are_one_line_without_host_path():
    for (number, error, text), operation in itertools.product(SYSTEM_ERRORS, OPERATIONS.values()):
        failing_root = Root("user", -1, FailingResolver(number))
        if error is NotFound and operation is OPERATIONS["examine"]:
            assert operation(failing_root, "note.md") is None
            continue
        caught = catch_error(error, operation, failing_root, "note.md", match=text)
        assert "\n" not in str(caught)


def raise_io_error(*_args):
    raise OSError(errno.EIO, "Input/output error")


def test_disk_error_while_reading_leaves_nothing_open(root, monkeypatch):
    for owner, name in ((os, "pread"), (subject, "fstat")):
        with assert_descriptors_closed(), monkeypatch.context() as patch:
            patch.setattr(owner, name, raise_io_error)
            with pytest.raises((OSError, errors.Unreadable), match=r"Input/output|EIO") as caught:
                root.read_bytes(user("note.md"))
            assert name == "fstat" or caught.type is errors.Unreadable


# Resolvers.


def test_descriptors_are_close_on_exec_and_purposes_fixed(root):
    for rel, purpose in (("note.md", READ), ("topic", LIST), ("note.md", EXAMINE)):
        fd = root.resolver.open(root.fd, rel.encode(), purpose)
        assert not os.get_inheritable(fd)
        os.close(fd)
    with pytest.raises(KeyError):
        Openat2Resolver().open(-1, b"note.md", os.O_RDWR)


@contextmanager
def disturb_openat2(number, times):
    """Let the first calls of openat2 fail; yield the recorded calls."""
    calls, real = [], syscalls._openat2

    def call(*args):
        calls.append(args)
        if len(calls) > times:
            return real(*args)
        syscalls.ctypes.set_errno(number)
        return -1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(syscalls, "_openat2", call)
        yield calls


def test_interrupted_openat2_is_retried_up_to_limit(trees):
    made = trees.open_root("openat2")
    for number in (errno.EAGAIN, errno.EINTR):
        with disturb_openat2(number, 3):
            assert made.read_bytes(user("note.md")) == b"inside note"
    with disturb_openat2(errno.EAGAIN, 10**6) as calls, pytest.raises(errors.Unreadable, match="EAGAIN"):
        made.read_bytes(user("note.md"))
    assert len(calls) == syscalls.ATTEMPTS
    os.close(made.fd)


def test_resolver_depends_on_kernel_and_known_machine(monkeypatch):
    for number, name in ((errno.EBADF, "openat2"), (errno.ENOSYS, "walk"), (errno.EPERM, "walk")):
        with disturb_openat2(number, 1):
            assert subject.choose_resolver().name == name

    def raise_unsupported():
        raise errors.PlatformUnsupported("no")

    monkeypatch.setattr(subject, "require_known_machine", raise_unsupported)
    catch_error(errors.PlatformUnsupported, subject.choose_resolver)


def test_walk_rejects_other_device_at_any_component(trees, monkeypatch):
    made, real = trees.open_root("walk"), walk.fstat
    for number in (1, 2):  # The first call checks the root itself.
        checked = []

        def fstat_other_device(fd, number=number, checked=checked):
            checked.append(fd)
            return SimpleNamespace(st_dev=real(fd).st_dev + (len(checked) > number), st_mode=real(fd).st_mode)

        monkeypatch.setattr(walk, "fstat", fstat_other_device)
        with assert_descriptors_closed(), pytest.raises(PathEscape) as caught:
            made.read_bytes(user("topic/one.md"))
        assert caught.value.via is Via.MOUNT
    os.close(made.fd)


# -- open directories: access by handle, without following links -----------------------------------------


def test_open_directory_lists_names_kinds_and_file_status(root, trees):
    (trees.inside / "link.md").symlink_to(trees.outside / f"{CANARY}.md")
    os.mkfifo(trees.inside / "pipe.md")
    Path(os.fsdecode(os.fsencode(trees.inside) + b"/\xff.md")).write_bytes(b"odd")
    with OpenDirectory(root, user("")) as opened:
        found = {item.name: item for item in opened.entries()}
        second_names = {item.name for item in opened.entries()}
    assert {name: item.kind for name, item in found.items()} == {
        **dict.fromkeys(("folder.md", "topic"), "directory"),
        **dict.fromkeys(("link.md", "pipe.md"), "other"),
        **dict.fromkeys(("note.md", "\udcff.md"), "file"),
    }
    assert found.keys() == second_names
    assert all(os.fsencode(name) == item.raw for name, item in found.items())
    assert found["note.md"].status == (trees.inside / "note.md").lstat()
    assert {name for name, item in found.items() if item.status} == {"note.md", "\udcff.md"}


def test_read_returns_status_from_before_the_read(root, trees, monkeypatch):
    path = trees.inside / "topic" / "one.md"
    before = path.stat()
    real = os.pread

    def pread(fd, count, position):
        monkeypatch.setattr(os, "pread", real)
        path.write_text("inside ONE and more")
        return real(fd, count, position)

    monkeypatch.setattr(os, "pread", pread)
    with OpenDirectory(root, user("topic")) as opened:
        content, status = opened.read("one.md")
    assert content == b"inside ONE and more"
    assert (status.st_ino, status.st_size) == (before.st_ino, before.st_size) == (before.st_ino, 10)


def test_status_of_name_does_not_follow_links(root, trees):
    (trees.inside / "topic" / "link.md").symlink_to("one.md")
    with OpenDirectory(root, user("topic")) as opened:
        assert opened.read_status("link.md") == (trees.inside / "topic" / "link.md").lstat()
        assert opened.read_status("deep") == (trees.inside / "topic" / "deep").lstat()
        assert opened.read_status("gone.md") is None
        for name in ("", "deep/two.md", "a/b", "..", "/etc", "\0"):
            for method in (opened.read_status, opened.read):
                catch_error(PathEscape if name in {"..", "/etc", "\0"} else BadName, method, name)


def test_open_directory_rejects_hard_links_and_non_files(root, trees):
    os.link(trees.outside / f"{CANARY}.md", trees.inside / "hard.md")
    os.mkfifo(trees.inside / "pipe.md")
    (trees.inside / "large.md").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    with OpenDirectory(root, user("")) as opened:
        for name, via in (("hard.md", Via.HARDLINK), ("pipe.md", Via.SPECIAL)):
            assert catch_error(PathEscape, opened.read, name).via is via
        catch_error(errors.NotAFile, opened.read, "topic")
        catch_error(errors.TooLarge, opened.read, "large.md")
        catch_error(NotFound, opened.read, "gone.md")


def test_open_directory_is_unchanged_after_replacement(root, trees, tmp_path):
    with OpenDirectory(root, user("topic")) as opened:
        (trees.inside / "topic").rename(tmp_path / "moved")
        (trees.inside / "topic").symlink_to(trees.outside)
        assert {item.name for item in opened.entries()} == {"deep", "one.md"}
        assert opened.read("one.md")[0] == b"inside one"


def test_removed_directory_is_not_found(root, trees):
    (trees.inside / "folder.md").rmdir()
    catch_error(NotFound, OpenDirectory, root, user("folder.md"))
    fd = os.open(trees.inside / "topic", os.O_PATH)
    (trees.inside / "topic").rename(trees.inside / "aside")
    for path in ("aside/deep/two.md", "aside/one.md"):
        (trees.inside / path).unlink()
    (trees.inside / "aside/deep").rmdir()
    (trees.inside / "aside").rmdir()
    removed = type(root)(root.scope, fd, root.resolver)
    with OpenDirectory(removed, user("")) as opened, pytest.raises(NotFound):
        opened.entries()
    os.close(fd)


def test_open_directory_limits_names_and_handles_vanished(root, trees, monkeypatch):
    with OpenDirectory(root, user("")) as opened:
        monkeypatch.setattr(listing, "MAX_ENTRIES", 3)
        assert len(opened.entries()) == 3
        monkeypatch.setattr(listing, "MAX_ENTRIES", 2)
        catch_error(errors.TooLarge, opened.entries)
    real = os.scandir

    @contextlib.contextmanager
    def scan_then_remove(fd):
        with real(fd) as scanned:
            listed = list(scanned)
        (trees.inside / "topic" / "one.md").unlink()
        yield iter(listed)

    monkeypatch.setattr(os, "scandir", scan_then_remove)
    with OpenDirectory(root, user("topic")) as opened:
        files = {item.name: item.status for item in opened.entries() if item.kind == "file"}
    assert files == {"one.md": None}


def test_open_directory_system_error_leaves_nothing_open(root, monkeypatch):
    for call in ("scandir", "fstat"):
        with assert_descriptors_closed(), monkeypatch.context() as patched:
            patched.setattr(os, call, raise_io_error)
            with pytest.raises(errors.Unreadable, match="EIO"), OpenDirectory(root, user("topic")) as opened:
                opened.entries()


# -- links under a root: every name that a path can contain, without following ---------------------------


def test_read_links_skips_invalid_names_and_non_links(root, trees):
    inside = trees.inside
    for rel in ("bad|name.md", "bad*/l.md", "1/2/3/4/5/6/7/8/l.md", os.fsdecode(b"\xff.md"), "nul.md"):
        (inside / rel).parent.mkdir(parents=True, exist_ok=True)
        (inside / rel).symlink_to("x.md")
    os.mkfifo(inside / "fifo.md")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(inside / "socket.md"))
    (inside / "hard.md").hardlink_to(trees.outside / "note.md")
    assert read_links(root) == {}


def test_read_links_keeps_target_bytes_and_skips_linked_folders(root, trees):
    for target in (b"\xff/\xfe.md", b"a\nb", "é.md".encode(), b"x" * 4095):
        (trees.inside / "l.md").symlink_to(os.fsdecode(target))
        assert os.fsencode(read_links(root)["l.md"]) == target
        (trees.inside / "l.md").unlink()
    (trees.outside / "inner.md").symlink_to("note.md")
    (trees.inside / "way").symlink_to(trees.outside)
    (trees.inside / "topic" / "again").symlink_to("../topic")
    assert read_links(root) == {"way": "/", "topic/again": "../topic"}


# -- changes after the listing ---------------------------------------------------------------------------


def read_links_during(root, folder, act):
    """Return the links read while another process acts just before a folder is listed."""

    acts = iter([act])

    def open_after_act(dir_fd, path, purpose):
        if (path, purpose) == (folder, EXAMINE):
            next(acts, lambda: None)()
        return root.resolver.open(dir_fd, path, purpose)

    return read_links(Root(root.scope, root.fd, SimpleNamespace(name="meddling", open=open_after_act)))


def test_read_links_skips_folder_replaced_after_listing(root, trees):
    (trees.inside / "topic" / "l.md").symlink_to("x.md")
    (trees.inside / "l.md").symlink_to("x.md")
    (trees.outside / "l.md").symlink_to(CANARY)

    def swap():
        (trees.inside / "topic").rename(trees.inside / "kept")
        (trees.inside / "topic").symlink_to(trees.outside)

    def fail(number):
        raise OSError(number, "on purpose")

    for number in (errno.ENOENT, errno.EXDEV, errno.EACCES):
        assert read_links_during(root, b"topic", partial(fail, number)) == {"l.md": "x.md"}
    assert CANARY not in str(read_links_during(root, b"topic", swap))


def test_read_links_skips_link_replaced_after_listing(root, trees):
    first, second, third = (trees.inside / name for name in ("first.md", "second.md", "third.md"))
    for each in (first, second, third):
        each.symlink_to("x.md")
    found = read_links_during(root, b".", lambda: (first.unlink(), second.unlink(), second.touch()))
    assert found == {"third.md": "x.md"}


def test_read_links_works_for_moved_and_removed_root(root, trees):
    (trees.inside / "l.md").symlink_to("x.md")
    trees.inside.rename(trees.inside.with_name("moved"))
    assert read_links(root) == {"l.md": "x.md"}
    trees.inside.mkdir()
    removed_root = Root("user", os.open(trees.inside, os.O_PATH | os.O_DIRECTORY), root.resolver)
    trees.inside.rmdir()
    assert read_links(removed_root) == {}
    os.close(removed_root.fd)


# -- limits ----------------------------------------------------------------------------------------------


def get_limit_error(root):
    with assert_descriptors_closed(), pytest.raises(ManagedMemoryUnavailable) as caught:
        read_links(root)
    assert caught.value.what == root.scope
    assert "bind a smaller directory, or reject links (symlinks = 'refuse')" in caught.value.reason
    return caught.value.reason


def test_read_links_over_limits_raises_with_advice(root, trees, monkeypatch):
    (trees.inside / "l.md").symlink_to(os.fsdecode(b"\xff" * 16))
    with monkeypatch.context() as patch:
        patch.setattr(links, "MAX_LINK_BYTES", 20)
        assert len(read_links(root)) == 1
        (trees.inside / "m").symlink_to("x")
        assert "very long targets" in get_limit_error(root)
    names = sum(len(names) + len(files) for _, names, files in os.walk(trees.inside))
    with monkeypatch.context() as patch:
        patch.setattr(links, "MAX_NAMES", names)
        assert len(read_links(root)) == 2
        (trees.inside / "topic" / "deep" / "bad|name").write_text("")
        assert f"more than {names} names" in get_limit_error(root)
    for number in range(2, links.MAX_LINKS):
        (trees.inside / "topic" / f"l{number}").symlink_to("x")
    assert len(read_links(root)) == links.MAX_LINKS
    (trees.inside / "one-more").symlink_to("x")
    assert f"more than {links.MAX_LINKS} links" in get_limit_error(root)
    monkeypatch.setattr(subject, "MAX_ENTRIES", 3)
    assert f"more than {MAX_ENTRIES} names" in get_limit_error(root)
