"""Which directories become roots: `muniment.kernel.binding`."""

import os
import stat
from pathlib import Path

import pytest

from kit.descriptors import nothing_left_open
from kit.kernel.trees import Failing
from kit.paths import at
from kit.raising import raised
from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable, PathEscape, PolicyInvalid
from muniment.kernel.binding import bind, bind_all
from muniment.kernel.names import Via
from muniment.policy.ownership import bind_outside, create_private_directory, require_ours


@pytest.fixture
def directory(tmp_path):
    made = tmp_path / "memory"
    made.mkdir(mode=0o700)
    (made / "note.md").write_text("inside")
    return made


def refused(path, **keywords):
    """The reason for which `path` is not bound; nothing stays open."""
    with nothing_left_open(), pytest.raises(ManagedMemoryUnavailable) as caught:
        bind("user", path, **keywords)
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
        assert bound.root.read_bytes(at("user", "note.md")) == b"inside"
        bound.verify()


def test_what_is_no_directory_is_refused_with_the_reason_and_advice(directory, tmp_path, monkeypatch):
    monkeypatch.chdir(directory)
    (tmp_path / "link").symlink_to(tmp_path / "missing")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert refused("") == "no directory is configured; give the path of one"
    for path, reason in (
        *((tmp_path / "missing", "does not exist; create it"), (tmp_path / "link", "missing target")),
        *((tmp_path / "loop", "cannot be opened"), (directory / "note.md", "is not a directory")),
        ("nul\0", "is not a valid path"),
    ):
        assert reason in refused(path)


@pytest.mark.threat("T-LEAK-08", control="roots_ours")
def test_a_directory_that_others_have_or_write_is_refused_with_the_remedy(directory, tmp_path, monkeypatch):
    for mode in (0o720, 0o702, 0o2770):
        directory.chmod(mode)
        reason = refused(directory)
        assert f"mode {mode:04o}" in reason
        assert reason.endswith(f"run: chmod go-w {directory}")
    (tmp_path / "link").symlink_to(directory)
    assert f"{directory} (the target of the link {tmp_path / 'link'})" in refused(tmp_path / "link")
    directory.chmod(0o700)
    us = os.geteuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: us + 1)
        assert f"belongs to user {us}, not to user {us + 1};" in refused(directory)
    if us == 0:
        os.chown(directory, 65_534, 65_534)
        assert "belongs to user 65534" in refused(directory)


def test_a_directory_swapped_while_it_is_bound_or_not_listed_is_refused(directory, tmp_path, monkeypatch):
    told = refused(directory, resolver=Failing(13))
    assert "cannot be listed (Permission denied); run: chmod u+rwx" in told
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
def test_a_root_inside_around_or_equal_to_what_is_kept_apart_is_refused(directory, tmp_path, monkeypatch):
    inside = directory / "state"
    inside.mkdir()
    missing = directory / "not" / "yet"
    for kept, relation in (
        *((inside, f"contains {inside}"), (tmp_path, f"is inside {tmp_path}")),
        *((missing, f"contains {missing}"), (directory / "note.md" / "below", "contains")),
    ):
        assert relation in refused(directory, apart_from=[kept])
    real = Path.stat

    def failing(path, **keywords):
        if path == tmp_path / "state":
            raise PermissionError(13, "Permission denied")
        return real(path, **keywords)

    monkeypatch.setattr(Path, "stat", failing)
    assert "cannot check the path" in refused(directory, apart_from=[tmp_path / "state"])


def test_roots_of_several_scopes_must_lie_apart(directory, tmp_path):
    below, beside, missing = directory / "below", tmp_path / "beside", tmp_path / "missing"
    for made in (below, beside):
        made.mkdir(mode=0o700)
    for roots, told in (
        ({"user": directory, "project": below}, "contains the root of scope 'project'"),
        ({"user": directory, "project": directory}, "is the same directory as the root of scope 'project'"),
        ({"project": beside, "user": missing}, "does not exist"),
    ):
        with nothing_left_open(), pytest.raises(ManagedMemoryUnavailable, match=told):
            bind_all(roots)
    roots = bind_all({"user": directory, "project": beside}, apart_from=[tmp_path / "state"])
    assert list(roots) == ["user", "project"]
    for bound in roots.values():
        bound.verify()
        assert os.fstat(bound.root.fd).st_ino == bound.inode
        bound.close()


def test_a_policy_lies_in_no_root_by_any_name_and_is_written_by_nobody_else(directory, tmp_path):
    folder, policy = tmp_path / "policies", tmp_path / "policies" / "p.toml"
    folder.mkdir(mode=0o700)
    policy.write_text("")
    for bound in bind_outside({"user": directory}, [policy], frozenset()).values():
        bound.close()
    lies = raised(PolicyInvalid, bind_outside, {"user": directory}, [directory / "note.md"], frozenset())
    assert "is in the root" in str(lies)
    (directory / "p.toml").hardlink_to(policy)
    links = frozenset({(policy.stat().st_dev, policy.stat().st_ino)})
    with pytest.raises(PolicyInvalid, match="by another name"):
        bind_outside({"user": directory}, [policy], links)
    require_ours(folder, inside=True)
    policy.chmod(0o666)
    for path in (policy, folder):
        raised(ConfigInvalid, require_ours, path, inside=path == folder)


# Afterwards.


@pytest.mark.threat("T-PATH-05", control="root_identity")
def test_a_root_that_is_no_longer_where_it_was_bound_is_noticed(directory, tmp_path):
    with bind("user", directory) as bound:
        for act in (
            lambda: directory.rename(tmp_path / "moved"),
            directory.mkdir,
            lambda: (directory.rmdir(), directory.symlink_to(tmp_path)),
        ):
            act()
            caught = raised(PathEscape, bound.verify)
            assert (caught.via, caught.requested) == (Via.ROOT_REPLACED, "user")
        directory.unlink()
        (tmp_path / "moved").rename(directory)
        bound.verify()


# Default directories.


def test_a_default_directory_and_its_parents_are_private_and_take_the_place_of_nothing(directory, tmp_path):
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
    (tmp_path / "dangling").symlink_to(tmp_path / "missing")
    for path, told in (
        (directory / "note.md", "is not a directory"),
        (tmp_path / "dangling", "is not a directory"),
        (directory / "note.md" / "below", "cannot be created"),
    ):
        raised(ManagedMemoryUnavailable, create_private_directory, path, match=told)
    assert not (tmp_path / "missing").exists()
