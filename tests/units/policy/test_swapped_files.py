"""Files of a policy that are not what they seem: swapped while they are read, linked, or made to cost."""

from __future__ import annotations

import os
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest

import muniment
from kit.policy.files import named, write
from muniment.errors import ConfigInvalid, PolicyInvalid
from muniment.policy import family, load
from muniment.policy.family import hold_to_locks, shipped_folder
from muniment.policy.load import load_files
from muniment.settings import Settings, read_settings
from muniment.signatures import load_configured


def swapped_when_closed(monkeypatch, path, swap):
    """Have `swap` run once the file that stands at `path` was read, before anything else is asked of it."""
    real, inode = os.close, path.stat().st_ino

    def close(descriptor):
        is_it = path.exists() and os.fstat(descriptor).st_ino == inode
        real(descriptor)
        if is_it:
            monkeypatch.setattr(family.os, "close", real)
            swap()

    monkeypatch.setattr(family.os, "close", close)


@pytest.mark.threat("T-POL-09", control="asked_of_the_descriptor")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_policy_that_is_a_link_for_a_moment_still_needs_its_signature(tmp_path, monkeypatch, what):
    """It is swapped once it was read, and swapped back before it is held to locks."""
    own = Path(write(tmp_path / "own" / "wide.toml", body=WIDE))
    (tmp_path / "signers").write_text("nobody\n")
    name, away = (own, tmp_path / "away") if what == "file" else (own.parent, tmp_path / "away")

    def swap():
        name.rename(away)
        name.symlink_to(shipped_folder() / "strict.toml" if what == "file" else shipped_folder())

    def back(*held):
        name.unlink()
        away.rename(name)
        return hold_to_locks(*held)

    swapped_when_closed(monkeypatch, own, swap)
    monkeypatch.setattr(load, "hold_to_locks", back)
    with pytest.raises(PolicyInvalid) as caught:
        load_configured(Settings(tmp_path, policy=str(own), policy_signers=tmp_path / "signers"))
    assert caught.value.rule == "E141"


@pytest.mark.threat("T-POL-09", control="asked_of_the_descriptor")
def test_a_policy_that_was_read_in_the_memory_is_refused_wherever_its_name_leads_now(tmp_path, monkeypatch):
    root = tmp_path / "memory"
    root.mkdir(mode=0o700)
    write(root / "own.toml")
    write(tmp_path / "good" / "own.toml")
    link = tmp_path / "policies"
    link.symlink_to(root)

    def swap():
        link.unlink()
        link.symlink_to(tmp_path / "good")

    swapped_when_closed(monkeypatch, root / "own.toml", swap)
    with pytest.raises(PolicyInvalid, match="E126"):
        muniment.Sandbox(policy=str(link / "own.toml"), roots={"user": root})


@pytest.mark.threat("T-POL-10", control="policies_outside")
def test_a_policy_that_is_a_file_of_the_memory_by_another_name_is_refused(tmp_path):
    root = tmp_path / "memory"
    (root / "deep").mkdir(parents=True, mode=0o700)
    root.chmod(0o700)
    own = Path(write(tmp_path / "policies" / "own.toml"))
    (tmp_path / "policies" / "copy.toml").hardlink_to(own)
    (root / "entry.md").write_text("x\n")
    (tmp_path / "elsewhere.md").hardlink_to(root / "entry.md")
    muniment.Sandbox(policy=str(own), roots={"user": root}).close()
    (root / "deep" / "entry.md").hardlink_to(own)
    for opened in (
        lambda: muniment.Sandbox(policy=str(own), roots={"user": root}),
        lambda: muniment.open(tmp_path, home=tmp_path / "home", policy=str(own), roots={"user": root}),
    ):
        with pytest.raises(PolicyInvalid, match=r"E126.*entry\.md.*another name"):
            opened()


@pytest.mark.threat("T-POL-10", control="links_that_lead_nowhere")
def test_a_link_that_leads_nowhere_is_no_missing_file(tmp_path):
    own = Path(write(tmp_path / "own.toml"))
    for name, rule in ("policy.lock", "E132"), ("gone.toml", "E100"):
        (tmp_path / name).symlink_to("nowhere")
        with pytest.raises(PolicyInvalid, match="leads nowhere") as caught:
            load_files(str(tmp_path / name if rule == "E100" else own))
        assert caught.value.rule == rule
        (tmp_path / name).unlink()
    (tmp_path / "own.toml.sig").symlink_to("nowhere")
    (tmp_path / "signers").write_text("nobody\n")
    with pytest.raises(PolicyInvalid, match="leads nowhere") as caught:
        load_configured(Settings(tmp_path, policy=str(own), policy_signers=tmp_path / "signers"))
    assert caught.value.rule == "E140"


PARTS = 3000
CHAINS = {
    "a key": ".".join(["a"] * PARTS) + " = 1\n",
    "spaced": " . ".join(["a"] * PARTS) + " = 1\n",
    "quoted": ".".join(['"a b"'] * PARTS) + " = 1\n",
    "escaped": ".".join([r'"a\"."'] * PARTS) + " = 1\n",
    "literal": ".".join(["'.'"] * PARTS) + " = 1\n",
    "mixed": ".".join(["a", '"b"', "'c'"] * (PARTS // 3)) + " = 1\n",
    "a table": f"[{'.'.join(['a'] * PARTS)}]\n",
    "an array": f"[[ {'.'.join(['a'] * PARTS)} ]]\n",
    "an inline table": "x = {" + ".".join(["a"] * PARTS) + " = 1}\n",
}


@pytest.mark.threat("T-POL-11", control="key_parts")
def test_a_key_of_many_parts_is_refused_before_it_costs_anything(tmp_path):
    own = Path(write(tmp_path / "own.toml"))
    (tmp_path / "home").mkdir(mode=0o700)
    for chain in CHAINS.values():
        tracemalloc.start()
        try:
            own.write_text(named("own") + chain)
            with pytest.raises(PolicyInvalid, match="more than 16 parts") as caught:
                load_files(str(own))
            assert (caught.value.rule, caught.value.line) == ("E102", len(named("own").splitlines()) + 1)
            write(own)
            (tmp_path / "policy.lock").write_text(chain)
            with pytest.raises(PolicyInvalid, match="E132"):
                load_files(str(own))
            (tmp_path / "policy.lock").unlink()
            (tmp_path / "home" / "config.toml").write_text(chain)
            with pytest.raises(ConfigInvalid, match="more than 16 parts"):
                read_settings({"MUNIMENT_HOME": str(tmp_path / "home")})
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 8_000_000


def test_looking_for_long_keys_takes_steps_in_proportion_to_the_text():
    for unit in ('"', "'", "a.", 'a."', '"\\"', "a-", "a .", "\"'", "[", "a.\n", '"a".', "'a' "):
        with suppress(ValueError):
            family.refuse_long_keys((unit * 200_000)[:200_000])


WIDE = (
    '[scopes]\nuser = { trust = "owner", commit = "auto" }\n'
    '[[allow]]\nid = "w"\nverbs = ["list", "read", "create", "modify"]\npaths = ["/user/**"]\n'
)
