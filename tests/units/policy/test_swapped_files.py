"""Policy files that are not what they seem: swapped during a read, linked, or expensive to parse."""

import os
import tracemalloc
from pathlib import Path

import pytest

import muniment
from kit.policy.files import SCOPES, catch_invalid, format_policy, format_rule, write_policy
from muniment.errors import ConfigInvalid
from muniment.policy import family, load
from muniment.policy.family import check_locks
from muniment.policy.files import get_shipped_folder
from muniment.policy.load import load_files
from muniment.settings import Settings, load_configured_policy, read_settings

WIDE = SCOPES + format_rule("allow", "w", ["list", "read", "create", "modify"], ["/user/**"])


def swap_after_close(monkeypatch, path, swap):
    """Run `swap` as soon as the file at `path` was read, before any other check."""
    real, inode = os.close, path.stat().st_ino

    def close(descriptor):
        is_it = path.exists() and os.fstat(descriptor).st_ino == inode
        real(descriptor)
        if is_it:
            monkeypatch.setattr(family.os, "close", real)
            swap()

    monkeypatch.setattr(family.os, "close", close)


def link(place, to):
    place.unlink(missing_ok=True)
    place.symlink_to(to)


@pytest.fixture
def make_settings(tmp_path):
    """Return a function that creates settings with a policy that needs a signature."""
    (tmp_path / "signers").write_text("nobody\n")
    return lambda own: Settings(tmp_path, policy=str(own), policy_signers=tmp_path / "signers")


@pytest.mark.threat("T-POL-09", control="descriptor_folders")
@pytest.mark.parametrize("is_file", [True, False])
def test_policy_that_is_briefly_a_link_still_needs_its_signature(
    tmp_path, monkeypatch, make_settings, is_file
):
    """Swapped after the read, and swapped back before the check of locks."""
    own, away = Path(write_policy(tmp_path / "own" / "wide.toml", body=WIDE)), tmp_path / "away"
    name, to = (own, get_shipped_folder() / "strict.toml") if is_file else (own.parent, get_shipped_folder())

    def swap():
        name.rename(away)
        name.symlink_to(to)

    def swap_back(*args):
        name.unlink()
        away.rename(name)
        return check_locks(*args)

    swap_after_close(monkeypatch, own, swap)
    monkeypatch.setattr(load, "check_locks", swap_back)
    assert catch_invalid(load_configured_policy, make_settings(own)).rule == "E141"


def test_policy_read_inside_the_memory_is_rejected_after_a_swap(tmp_path, monkeypatch):
    root, policies = tmp_path / "memory", tmp_path / "policies"
    root.mkdir(mode=0o700)
    write_policy(root / "own.toml")
    write_policy(tmp_path / "good" / "own.toml")
    link(policies, root)
    swap_after_close(monkeypatch, root / "own.toml", lambda: link(policies, tmp_path / "good"))
    found = catch_invalid(muniment.Sandbox, policy=str(policies / "own.toml"), roots={"user": root})
    assert found.rule == "E126"


@pytest.mark.threat("T-POL-10", control="policies_outside")
def test_policy_hard_linked_into_the_memory_is_rejected(tmp_path):
    root, own = tmp_path / "memory", Path(write_policy(tmp_path / "policies" / "own.toml"))
    (root / "deep").mkdir(parents=True, mode=0o700)
    root.chmod(0o700)
    copy = tmp_path / "policies" / "copy.toml"
    copy.hardlink_to(own)
    (root / "entry.md").write_text("x\n")
    (tmp_path / "elsewhere.md").hardlink_to(root / "entry.md")
    options = {"policy": str(own), "roots": {"user": root}}
    muniment.Sandbox(**options).close()
    (root / "deep" / "entry.md").hardlink_to(own)
    copy.unlink()
    opened = catch_invalid(muniment.open, tmp_path, home=tmp_path / "home", **options)
    for found in (opened, catch_invalid(muniment.Sandbox, **options)):
        assert (found.rule, found.where) == ("E126", str(root / "deep" / "entry.md"))
        assert "another name" in found.problem


@pytest.mark.threat("T-POL-10", control="dangling_links")
def test_dangling_link_is_not_a_missing_file(tmp_path, make_settings):
    own = write_policy(tmp_path / "own.toml")
    missing = str(tmp_path / "gone.toml")
    for name, code, call, argument in (
        *(("policy.lock", "E132", load_files, own), ("gone.toml", "E100", load_files, missing)),
        ("own.toml.sig", "E140", load_configured_policy, make_settings(own)),
    ):
        link(tmp_path / name, "nowhere")
        found = catch_invalid(call, argument)
        assert (found.rule, "broken link" in found.problem) == (code, True)
        (tmp_path / name).unlink()


PARTS = 3000
PLAIN = ".".join(["a"] * PARTS)
SPELLINGS = [[each] * PARTS for each in ("a", '"a b"', r'"a\"."', "'.'")] + [["a", '"b"', "'c'"] * 1000]
CHAINS = [
    *(".".join(parts) + " = 1\n" for parts in SPELLINGS),
    *(" . ".join(["a"] * PARTS) + " = 1\n", f"[{PLAIN}]\n", f"[[ {PLAIN} ]]\n", f"x = {{{PLAIN} = 1}}\n"),
]


@pytest.mark.threat("T-POL-11", control="key_parts")
def test_key_of_many_parts_is_rejected_at_low_cost(tmp_path):
    own, lock = Path(write_policy(tmp_path / "own.toml")), tmp_path / "policy.lock"
    (tmp_path / "home").mkdir(mode=0o700)
    for chain in CHAINS:
        tracemalloc.start()
        try:
            own.write_text(format_policy("own") + chain)
            found = catch_invalid(load_files, str(own))
            assert (found.rule, found.line) == ("E102", len(format_policy("own").splitlines()) + 1), chain[
                :20
            ]
            assert "more than 16 parts" in found.problem
            write_policy(own)
            lock.write_text(chain)
            assert catch_invalid(load_files, str(own)).rule == "E132"
            lock.unlink()
            (tmp_path / "home" / "config.toml").write_text(chain)
            with pytest.raises(ConfigInvalid, match="more than 16 parts"):
                read_settings({"MUNIMENT_HOME": str(tmp_path / "home")})
            assert tracemalloc.get_traced_memory()[1] < 8_000_000, chain[:20]
        finally:
            tracemalloc.stop()


def test_search_for_long_keys_terminates():
    for unit in ('"', "'", 'a."', '"\\"', "a-", "\"'", "[", "a.\n", "'a' "):
        family.reject_long_keys((unit * 200_000)[:200_000])
    for unit in ("a.", "a .", '"a".'):
        with pytest.raises(ValueError, match="16 parts"):
            family.reject_long_keys((unit * 200_000)[:200_000])
