"""Signatures, by the real ssh-keygen: where signers are configured, nothing unsigned bounds a run."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import muniment
from kit.memories import descriptors
from kit.policy.files import READ, SCOPES, write
from muniment import signatures
from muniment.cli.app import app
from muniment.errors import PolicyInvalid
from muniment.policy.load import load_files
from muniment.settings import Settings
from muniment.signatures import NAMESPACE, load_configured, sign, signature_path, statement, verify

NARROW = SCOPES + READ + "[limits]\nturns = 1\n"


def keygen(path, *options):
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path, *options]
    subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Private keys of a signer and of somebody else."""
    folder = tmp_path_factory.mktemp("keys")
    return keygen(folder / "alice"), keygen(folder / "mallory")


@pytest.fixture
def signers(keys, tmp_path):
    path = tmp_path / "signers"
    public = keys[0].with_suffix(".pub").read_text()
    path.write_text(f"# who may\nalice@example.com,second {public}")
    return path


@pytest.fixture
def own(tmp_path):
    return Path(write(tmp_path / "policies" / "own.toml"))


def signed(path, key):
    """Sign a policy file as it is."""
    loaded = load_files(str(path))
    signature_path(loaded.files[0]).write_bytes(sign(statement(loaded.policy), key))
    return loaded


def settings(path, signers, home=Path("/nowhere")):
    return Settings(home, policy=str(path), policy_signers=signers)


def refused(settings):
    with pytest.raises(PolicyInvalid) as caught:
        load_configured(settings)
    assert str(caught.value).isprintable()
    return caught.value


def test_a_statement_names_the_policy_and_the_digest_of_all_of_it(own):
    policy = load_files(str(own)).policy
    assert statement(policy) == f"muniment-policy/1 own {policy.digest}\n".encode()


def test_a_signed_policy_loads_and_its_signer_is_known(own, keys, signers):
    loaded = signed(own, keys[0])
    assert load_configured(settings(own, signers)) == loaded
    assert signatures.verify_policy(loaded, signers) == "alice@example.com"
    own.write_text("# a comment\n" + own.read_text())
    assert load_configured(settings(own, signers))


@pytest.mark.threat("T-POL-04", control="signatures_asked")
def test_nothing_unsigned_loads_where_signers_are_configured(own, signers):
    assert load_configured(settings(own, None))
    problem = refused(settings(own, signers))
    assert (problem.rule, "own.toml.sig" in problem.problem) == ("E141", True)


def test_what_came_with_the_program_needs_no_signature(signers, tmp_path):
    assert load_configured(settings("hardened", signers)).policy.name == "hardened"
    with pytest.raises(PolicyInvalid) as caught:
        signature_path(load_files("strict").files[0])
    assert caught.value.rule == "E143"
    copy = tmp_path / "strict.toml"
    copy.write_bytes(load_files("strict").files[0].path.read_bytes())
    assert refused(settings(copy, signers)).rule == "E141"


@pytest.mark.threat("T-POL-04", control="signatures_asked")
@pytest.mark.threat("T-POL-04", control="signatures_checked")
def test_a_signature_of_what_the_policy_was_is_none_of_what_it_is(own, keys, signers):
    signed(own, keys[0])
    write(own, body=NARROW)
    problem = refused(settings(own, signers))
    assert (problem.rule, problem.where) == ("E140", str(own))


@pytest.mark.threat("T-POL-04", control="signatures_checked")
def test_a_signature_covers_every_parent_and_the_name(own, keys, signers, tmp_path):
    child = Path(write(tmp_path / "child.toml", extends=["policies/own.toml"]))
    signed(child, keys[0])
    assert load_configured(settings(child, signers))
    write(own, body=NARROW)
    assert refused(settings(child, signers)).rule == "E140"
    signed(own, keys[0])
    renamed = write(own.with_name("other.toml"), body=NARROW)
    shutil.copy(f"{own}.sig", f"{renamed}.sig")
    assert refused(settings(renamed, signers)).rule == "E140"


def test_a_signature_by_somebody_else_or_for_something_else_is_none(own, keys, signers, tmp_path):
    loaded = signed(own, keys[1])
    assert refused(settings(own, signers)).rule == "E140"
    said = tmp_path / "said"
    said.write_bytes(statement(loaded.policy))
    subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-n", "file", "-f", keys[0], said], check=True, capture_output=True
    )
    shutil.copy(f"{said}.sig", f"{own}.sig")
    assert NAMESPACE != "file"
    assert refused(settings(own, signers)).rule == "E140"


@pytest.mark.parametrize("content", [b"", b"signed", b"\xff\xfe", b"#" * 300_000])
def test_what_is_no_signature_is_a_bad_one(own, signers, content):
    Path(f"{own}.sig").write_bytes(content)
    assert refused(settings(own, signers)).rule == "E140"


def test_a_signature_that_is_no_file_is_refused_and_not_waited_for(own, signers):
    os.mkfifo(f"{own}.sig")
    assert refused(settings(own, signers)).rule == "E140"


def test_without_signers_that_can_be_read_nothing_loads(own, keys, tmp_path):
    signed(own, keys[0])
    (tmp_path / "empty").write_text("")
    assert refused(settings(own, tmp_path / "empty")).rule == "E140"
    assert refused(settings(own, tmp_path / "missing")).rule == "E142"
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo"):
        problem = refused(settings(own, path))
        assert (problem.rule, problem.where) == ("E142", str(path))


def test_names_that_look_like_options_are_names(keys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(keys[0], "-key")
    Path("-signers").write_text(f"-O {keys[0].with_suffix('.pub').read_text()}")
    signature = sign(b"said\n", Path("-key"))
    assert verify(b"said\n", signature, Path("-signers"), where="own") == "-O"


def program(folder, script):
    """Something else that is called ssh-keygen."""
    folder.mkdir()
    (folder / "ssh-keygen").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "ssh-keygen").chmod(0o755)
    return str(folder)


def test_without_an_ssh_keygen_that_works_nothing_loads(own, keys, signers, tmp_path, monkeypatch):
    signed(own, keys[0])
    monkeypatch.setenv("PATH", str(tmp_path))
    problem = refused(settings(own, signers))
    assert (problem.rule, "install OpenSSH" in problem.problem) == ("E142", True)
    monkeypatch.setenv("PATH", program(tmp_path / "failing", "exit 3"))
    assert refused(settings(own, signers)).rule == "E140"
    with pytest.raises(PolicyInvalid, match="ended with 3"):
        sign(b"said\n", keys[0])
    monkeypatch.setattr(signatures, "VERIFY_SECONDS", 0.05)
    monkeypatch.setenv("PATH", program(tmp_path / "hanging", "exec /bin/sleep 30"))
    problem = refused(settings(own, signers))
    assert (problem.rule, "did not answer" in problem.problem) == ("E142", True)
    monkeypatch.setenv("PATH", program(tmp_path / "broken", ""))
    (tmp_path / "broken" / "ssh-keygen").write_text("#!/no/such/interpreter\n")
    assert "cannot be run" in refused(settings(own, signers)).problem


def test_ssh_keygen_learns_nothing_of_the_environment_to_verify(own, signers, tmp_path, monkeypatch):
    Path(f"{own}.sig").write_text("x")
    monkeypatch.setenv("PATH", program(tmp_path / "curious", f"/usr/bin/env > {tmp_path}/seen"))
    monkeypatch.setenv("MUNIMENT_API_KEY", "canary")
    assert refused(settings(own, signers)).rule == "E140"
    seen = (tmp_path / "seen").read_text()
    assert "canary" not in seen
    assert "LC_ALL=C" in seen


def test_a_key_that_cannot_sign_is_told_in_one_line(tmp_path):
    (tmp_path / "key").write_text("no key")
    for path in (tmp_path / "key", tmp_path / "missing", Path("a\0b")):
        with pytest.raises(PolicyInvalid) as caught:
            sign(b"said\n", path)
        assert caught.value.rule == "E142"
        assert str(caught.value).isprintable()


# -- wherever a policy bounds a run ---------------------------------------------------------------------


@pytest.fixture
def place(tmp_path, monkeypatch, own, signers):
    """A home where `own` is configured, and so are signers."""
    home, workspace, root = tmp_path / "home", tmp_path / "work", tmp_path / "memory"
    for folder in (home, workspace, root):
        folder.mkdir(mode=0o700)
    (home / "config.toml").write_text(f'policy = "{own}"\npolicy_signers = "{signers}"\n')
    monkeypatch.setenv("MUNIMENT_HOME", str(home))
    return home, workspace, root


@pytest.mark.threat("T-POL-04", control="signatures_asked")
def test_no_command_runs_by_an_unsigned_policy(place, own, keys):
    home, workspace, root = place
    tool = ["tool", "--policy", str(own), "--root", f"user={root}"]
    for command in (["doctor"], tool, ["ls", "--workspace", str(workspace)], ["remember", "a fact"]):
        done = CliRunner().invoke(app, command, input="")
        assert done.exit_code == 1, command
        assert "E141" in done.output, command
    with pytest.raises(PolicyInvalid, match="E141"):
        muniment.open(workspace, home=home)
    signed(own, keys[0])
    assert CliRunner().invoke(app, tool, input="").exit_code == 0
    muniment.open(workspace, home=home).close()


@pytest.mark.sweep(2)
@pytest.mark.threat("T-POL-04", control="policies_outside")
@pytest.mark.parametrize("spelling", ["file", "parent", "link out", "link in", "linked folder"])
def test_no_policy_is_read_from_where_a_run_may_write(tmp_path, spelling):
    root, outside = tmp_path / "memory", tmp_path / "policies"
    root.mkdir(mode=0o700)
    outside.mkdir()
    (tmp_path / "alias").symlink_to(root)
    good, bad = Path(write(outside / "good.toml")), Path(write(root / "deep" / "bad.toml", "good"))
    named = {
        "file": bad,
        "parent": write(outside / "own.toml", extends=["../memory/deep/bad.toml"]),
        "link out": root / "out.toml",
        "link in": outside / "in.toml",
        "linked folder": tmp_path / "alias" / "deep" / "bad.toml",
    }[spelling]
    (root / "out.toml").symlink_to(good)
    (outside / "in.toml").symlink_to("../alias/deep/bad.toml")
    before = descriptors()
    with pytest.raises(PolicyInvalid) as caught:
        muniment.Sandbox(policy=named, roots={"user": root})
    assert (caught.value.rule, "scope 'user'" in caught.value.problem) == ("E126", True)
    assert descriptors() == before
    settings_ = ["tool", "--policy", str(named), "--root", f"user={root}"]
    assert "E126" in CliRunner().invoke(app, settings_, input="").output
    muniment.Sandbox(policy=good, roots={"user": root}).close()


@pytest.mark.threat("T-POL-04", control="policies_outside")
def test_no_workspace_is_opened_with_a_policy_in_its_memory(tmp_path):
    root, workspace = tmp_path / "memory", tmp_path / "work"
    root.mkdir(mode=0o700)
    workspace.mkdir()
    own = write(root / "own.toml")
    with pytest.raises(PolicyInvalid, match="E126"):
        muniment.open(workspace, home=tmp_path / "home", policy=own, roots={"user": root})


def test_a_place_that_nobody_can_look_at_is_no_place_for_a_policy(tmp_path):
    root = tmp_path / "memory"
    root.mkdir(mode=0o700)
    loaded = load_files(write(tmp_path / "policies" / "own.toml"))
    shutil.rmtree(tmp_path / "policies")
    with pytest.raises(PolicyInvalid) as caught:
        muniment.Sandbox(policy=loaded, roots={"user": root})
    assert (caught.value.rule, "cannot tell" in caught.value.problem) == ("E126", True)
    (tmp_path / "loop").symlink_to("loop")
    moved = replace(loaded.files[0], path=tmp_path / "loop" / "own.toml")
    with pytest.raises(PolicyInvalid, match="cannot tell"):
        muniment.Sandbox(policy=replace(loaded, files=(moved,)), roots={"user": root})
