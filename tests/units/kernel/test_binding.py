"""Directories that become roots: `muniment.kernel.binding`."""

import os
import stat
from pathlib import Path

import pytest

from kit.catching import catch_error
from kit.descriptors import assert_descriptors_closed
from kit.kernel.trees import FailingResolver
from kit.paths import make_path
from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable, PathEscape, PolicyInvalid
from muniment.kernel.binding import bind, bind_all
from muniment.kernel.names import Via
from muniment.policy.ownership import bind_outside, create_private_directory, require_trusted


@pytest.fixture
def directory(tmp_path):
    made = tmp_path / "memory"
    made.mkdir(mode=0o700)
    (made / "note.md").write_text("inside")
    return made


def get_bind_error(path, **keywords):
    """Return the reason why `path` is not bound; check that nothing stays open."""
    with assert_descriptors_closed(), pytest.raises(ManagedMemoryUnavailable) as caught:
        bind("user", path, **keywords)
    assert caught.value.what == "user"
    assert "\n" not in caught.value.reason
    return caught.value.reason


@pytest.mark.threat("T-PATH-05", control="link_at_bind")
def test_bind_resolves_link_once(directory, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(directory)
    with bind("user", link) as bound:
        assert bound.trusted_path == directory
        link.unlink()
        link.symlink_to(tmp_path)
        assert bound.root.read_bytes(make_path("user", "note.md")) == b"inside"
        bound.verify()


def test_bind_rejects_non_directory_with_reason(directory, tmp_path, monkeypatch):
    monkeypatch.chdir(directory)
    (tmp_path / "link").symlink_to(tmp_path / "missing")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert get_bind_error("") == "no directory is configured; give the path of a directory"
    for path, reason in (
        *((tmp_path / "missing", "not found; create it"), (tmp_path / "link", "broken link")),
        *((tmp_path / "loop", "cannot be opened"), (directory / "note.md", "is not a directory")),
        ("nul\0", "is not a valid path"),
    ):
        assert reason in get_bind_error(path)


@pytest.mark.threat("T-LEAK-08", control="private_roots")
def test_bind_rejects_directory_writable_by_others(directory, tmp_path, monkeypatch):
    for mode in (0o720, 0o702, 0o2770):
        directory.chmod(mode)
        reason = get_bind_error(directory)
        assert f"mode {mode:04o}" in reason
        assert reason.endswith(f"run: chmod go-w {directory}")
    (tmp_path / "link").symlink_to(directory)
    assert f"{directory} (the target of the link {tmp_path / 'link'})" in get_bind_error(tmp_path / "link")
    directory.chmod(0o700)
    us = os.geteuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: us + 1)
        assert f"belongs to user {us}, not to user {us + 1};" in get_bind_error(directory)
    if us == 0:
        os.chown(directory, 65_534, 65_534)
        assert "belongs to user 65534" in get_bind_error(directory)


def test_bind_rejects_directory_swapped_or_not_listable(directory, tmp_path, monkeypatch):
    reason = get_bind_error(directory, resolver=FailingResolver(13))
    assert "cannot be listed (Permission denied); run: chmod u+rwx" in reason
    real = os.open

    def open_and_swap(path, *args, **keywords):
        fd = real(path, *args, **keywords)
        directory.rename(tmp_path / "moved")
        directory.mkdir(mode=0o700)
        return fd

    monkeypatch.setattr(os, "open", open_and_swap)
    assert "changed while it was bound" in get_bind_error(directory)


# Roots do not overlap state, policies, configuration or other scopes.


@pytest.mark.threat("T-PATH-05", control="roots_apart")
def test_root_overlapping_protected_directory_is_rejected(directory, tmp_path, monkeypatch):
    inside = directory / "state"
    inside.mkdir()
    missing = directory / "not" / "yet"
    for protected, relation in (
        *((inside, f"contains {inside}"), (tmp_path, f"is inside {tmp_path}")),
        *((missing, f"contains {missing}"), (directory / "note.md" / "below", "contains")),
    ):
        assert relation in get_bind_error(directory, disjoint_from=[protected])
    real = Path.stat

    def fail_stat(path, **keywords):
        if path == tmp_path / "state":
            raise PermissionError(13, "Permission denied")
        return real(path, **keywords)

    monkeypatch.setattr(Path, "stat", fail_stat)
    assert "cannot check the path" in get_bind_error(directory, disjoint_from=[tmp_path / "state"])


def test_roots_of_scopes_must_not_overlap(directory, tmp_path):
    below, sibling, missing = directory / "below", tmp_path / "beside", tmp_path / "missing"
    for made in (below, sibling):
        made.mkdir(mode=0o700)
    for roots, message in (
        ({"user": directory, "project": below}, "contains the root of scope 'project'"),
        ({"user": directory, "project": directory}, "is the same directory as the root of scope 'project'"),
        ({"project": sibling, "user": missing}, "not found"),
    ):
        with assert_descriptors_closed(), pytest.raises(ManagedMemoryUnavailable, match=message):
            bind_all(roots)
    roots = bind_all({"user": directory, "project": sibling}, disjoint_from=[tmp_path / "state"])
    assert list(roots) == ["user", "project"]
    for bound in roots.values():
        bound.verify()
        assert os.fstat(bound.root.fd).st_ino == bound.inode
        bound.close()


def test_policy_file_must_be_outside_roots_and_private(directory, tmp_path):
    folder, policy = tmp_path / "policies", tmp_path / "policies" / "p.toml"
    folder.mkdir(mode=0o700)
    policy.write_text("")
    for bound in bind_outside({"user": directory}, [policy], frozenset()).values():
        bound.close()
    error = catch_error(
        PolicyInvalid, bind_outside, {"user": directory}, [directory / "note.md"], frozenset()
    )
    assert "is in the root" in str(error)
    (directory / "p.toml").hardlink_to(policy)
    links = frozenset({(policy.stat().st_dev, policy.stat().st_ino)})
    with pytest.raises(PolicyInvalid, match="by another name"):
        bind_outside({"user": directory}, [policy], links)
    require_trusted(folder, inside=True)
    policy.chmod(0o666)
    for path in (policy, folder):
        catch_error(ConfigInvalid, require_trusted, path, inside=path == folder)


# After binding.


@pytest.mark.threat("T-PATH-05", control="root_identity")
def test_root_replaced_after_bind_is_detected(directory, tmp_path):
    with bind("user", directory) as bound:
        for act in (
            lambda: directory.rename(tmp_path / "moved"),
            directory.mkdir,
            lambda: (directory.rmdir(), directory.symlink_to(tmp_path)),
        ):
            act()
            caught = catch_error(PathEscape, bound.verify)
            assert (caught.via, caught.requested) == (Via.ROOT_REPLACED, "user")
        directory.unlink()
        (tmp_path / "moved").rename(directory)
        bound.verify()


# Default directories.


def test_default_directory_is_created_private_or_rejected(directory, tmp_path):
    target = tmp_path / "home" / "projects" / "memory"
    before = os.umask(0)
    try:
        create_private_directory(target)
    finally:
        os.umask(before)
    for path in (target, target.parent, target.parent.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    create_private_directory(str(target))
    bind("user", target).close()
    (tmp_path / "dangling").symlink_to(tmp_path / "missing")
    for path, message in (
        (directory / "note.md", "is not a directory"),
        (tmp_path / "dangling", "is not a directory"),
        (directory / "note.md" / "below", "cannot be created"),
    ):
        catch_error(ManagedMemoryUnavailable, create_private_directory, path, match=message)
    assert not (tmp_path / "missing").exists()
