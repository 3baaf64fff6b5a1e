"""Which directories become roots: `muniment.confine.binding`."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from muniment.confine.binding import bind, bind_all, create_private_directory
from muniment.errors import ManagedMemoryUnavailable, PathEscape
from muniment.names import Via


@pytest.fixture
def directory(tmp_path):
    made = tmp_path / "memory"
    made.mkdir(mode=0o700)
    (made / "note.md").write_text("inside")
    return made


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def refused(path, **keywords):
    """The reason for which `path` is not bound; nothing stays open."""
    held = open_descriptors()
    with pytest.raises(ManagedMemoryUnavailable) as caught:
        bind("user", path, **keywords)
    assert open_descriptors() == held
    assert caught.value.what == "user"
    assert "\n" not in caught.value.reason
    return caught.value.reason


@pytest.mark.threat("T-PATH-05", control="link_at_bind")
def test_a_link_is_resolved_once_when_it_is_bound(directory, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(directory)
    with bind("user", link) as bound:
        assert bound.trusted_path == directory
        link.unlink()
        link.symlink_to(tmp_path)
        assert bound.root.read_bytes("note.md") == b"inside"
        bound.verify()


def test_an_empty_path_is_not_the_current_directory(directory, monkeypatch):
    monkeypatch.chdir(directory)
    assert refused("") == "no directory is given for it"


def test_a_missing_directory_is_refused_with_advice(tmp_path):
    assert "does not exist; create it" in refused(tmp_path / "missing")


def test_a_dangling_link_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "missing")
    assert "leads nowhere" in refused(tmp_path / "link")


def test_a_loop_of_links_is_refused(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "cannot be opened" in refused(tmp_path / "loop")


def test_a_file_is_refused(directory):
    assert "is not a directory" in refused(directory / "note.md")
    assert "is not a directory" in refused(directory / "note.md" / "below")


def test_a_text_that_is_no_path_is_refused():
    assert "is not a path" in refused("nul\0")


@pytest.mark.threat("T-LEAK-08", control="roots_ours")
@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o2770])
def test_a_directory_that_others_may_write_is_refused_with_the_remedy(directory, mode):
    directory.chmod(mode)
    reason = refused(directory)
    assert f"mode {mode:04o}" in reason
    assert reason.endswith(f"run: chmod go-w {directory}")


@pytest.mark.threat("T-LEAK-08", control="roots_ours")
def test_a_directory_of_somebody_else_is_refused(directory, monkeypatch):
    us = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: us + 1)
    assert f"belongs to user {us}, not to us ({us + 1})" in refused(directory)


def test_root_binds_only_what_belongs_to_root(directory):
    if os.geteuid() != 0:
        pytest.skip("only a privileged process can give a directory away")
    os.chown(directory, 65_534, 65_534)
    assert "belongs to user 65534" in refused(directory)


def test_a_link_to_a_directory_that_will_not_do_is_named_in_the_reason(directory, tmp_path):
    directory.chmod(0o777)
    (tmp_path / "link").symlink_to(directory)
    assert f"{directory} (where the link {tmp_path / 'link'} leads)" in refused(tmp_path / "link")


def test_a_directory_that_is_swapped_while_it_is_bound_is_refused(directory, tmp_path, monkeypatch):
    real = os.open

    def swapping(path, *args, **keywords):
        fd = real(path, *args, **keywords)
        directory.rename(tmp_path / "moved")
        directory.mkdir(mode=0o700)
        return fd

    monkeypatch.setattr(os, "open", swapping)
    assert "changed while it was bound" in refused(directory)


# Apart from state, policies, configuration, other scopes.


@pytest.mark.threat("T-PATH-05", control="roots_apart")
def test_a_root_inside_around_or_equal_to_a_kept_path_is_refused(directory, tmp_path):
    inside = directory / "state"
    inside.mkdir()
    assert f"lies around {inside}" in refused(directory, apart_from=[inside])
    assert f"lies inside {tmp_path}" in refused(directory, apart_from=[tmp_path])
    assert f"is the same directory as {directory}" in refused(directory, apart_from=[directory])


def test_a_kept_path_that_does_not_exist_yet_counts(directory):
    missing = directory / "not" / "yet"
    assert f"lies around {missing}" in refused(directory, apart_from=[missing])
    assert "lies around" in refused(directory, apart_from=[directory / "note.md" / "below"])


def test_a_kept_path_that_cannot_be_found_out_about_denies(directory, tmp_path, monkeypatch):
    real = Path.stat

    def failing(path, **keywords):
        if path == tmp_path / "state":
            raise PermissionError(13, "Permission denied")
        return real(path, **keywords)

    monkeypatch.setattr(Path, "stat", failing)
    assert "cannot tell where" in refused(directory, apart_from=[tmp_path / "state"])


def test_roots_of_several_scopes_must_lie_apart(directory, tmp_path):
    (directory / "below").mkdir(mode=0o700)
    (tmp_path / "beside").mkdir(mode=0o700)
    held = open_descriptors()
    for other, relation in ((directory / "below", "lies around"), (directory, "is the same directory as")):
        with pytest.raises(ManagedMemoryUnavailable, match=f"{relation} the root of scope 'project'"):
            bind_all({"user": directory, "project": other})
    with pytest.raises(ManagedMemoryUnavailable, match="lies inside the root of scope 'user'"):
        bind_all({"project": directory / "below", "user": directory})
    with pytest.raises(ManagedMemoryUnavailable, match="does not exist"):
        bind_all({"project": tmp_path / "beside", "user": tmp_path / "missing"})
    assert open_descriptors() == held
    roots = bind_all({"user": directory, "project": tmp_path / "beside"}, apart_from=[tmp_path / "state"])
    assert list(roots) == ["user", "project"]
    for bound in roots.values():
        bound.verify()
        assert os.fstat(bound.root.fd).st_ino == bound.inode
        bound.close()


# Afterwards.


def replaced(bound):
    with pytest.raises(PathEscape) as caught:
        bound.verify()
    return caught.value.via is Via.ROOT_REPLACED and caught.value.requested == "user"


@pytest.mark.threat("T-PATH-05", control="root_identity")
def test_a_root_that_is_no_longer_where_it_was_bound_is_noticed(directory, tmp_path):
    with bind("user", directory) as bound:
        directory.rename(tmp_path / "moved")
        assert replaced(bound)
        directory.mkdir()
        assert replaced(bound)
        directory.rmdir()
        directory.symlink_to(tmp_path)
        assert replaced(bound)
        directory.unlink()
        (tmp_path / "moved").rename(directory)
        bound.verify()


# Default directories.


def test_a_default_directory_and_its_parents_are_private_whatever_the_umask(tmp_path):
    wanted = tmp_path / "home" / "projects" / "memory"
    before = os.umask(0)
    try:
        create_private_directory(wanted)
    finally:
        os.umask(before)
    for path in (wanted, wanted.parent, wanted.parent.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    create_private_directory(str(wanted))
    bind("user", wanted).close()


def test_a_default_directory_in_whose_place_something_stands_is_refused(directory, tmp_path):
    (tmp_path / "dangling").symlink_to(tmp_path / "missing")
    for path in (directory / "note.md", tmp_path / "dangling"):
        with pytest.raises(ManagedMemoryUnavailable, match="is not a directory"):
            create_private_directory(path)
    with pytest.raises(ManagedMemoryUnavailable, match="cannot be created"):
        create_private_directory(directory / "note.md" / "below")
    assert not (tmp_path / "missing").exists()


def test_a_root_that_cannot_be_listed_is_told_at_once(directory):
    class Refusing:
        name = "refusing"

        def open(self, dir_fd, path, purpose):  # noqa: ARG002
            raise PermissionError(errno.EACCES, "Permission denied")

    held = open_descriptors()
    with pytest.raises(
        ManagedMemoryUnavailable, match=r"cannot be listed \(Permission denied\); run: chmod u\+rwx"
    ):
        bind("user", directory, resolver=Refusing())
    assert open_descriptors() == held
