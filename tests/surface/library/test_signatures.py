"""Signatures, by the real ssh-keygen: where signers are configured, nothing unsigned bounds a run."""

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import muniment
from kit.cli.commands import invoked
from kit.memories import descriptors, make_roots
from kit.policy.files import READ, SCOPES, write
from muniment.errors import PolicyInvalid
from muniment.policy import signatures
from muniment.policy.load import load_files
from muniment.policy.signatures import NAMESPACE, sign, signature_path, statement, verify
from muniment.settings import Settings, load_configured

NARROW = SCOPES + READ + "[limits]\nturns = 1\n"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Private keys of a signer and of somebody else."""
    made = tuple(tmp_path_factory.mktemp("keys") / name for name in ("alice", "mallory"))
    for key in made:
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key]
        subprocess.run(command, check=True, capture_output=True)
    return made


@pytest.fixture
def signers(keys, tmp_path):
    path, public = tmp_path / "signers", keys[0].with_suffix(".pub").read_text()
    path.write_text(f"# who may\nalice@example.com,second {public}")
    return path


own = pytest.fixture(lambda tmp_path: Path(write(tmp_path / "policies" / "own.toml")))


def signed(path, key):
    """Sign a policy file as it is."""
    loaded = load_files(str(path))
    signature_path(loaded.files[0]).write_bytes(sign(statement(loaded.policy), key))
    return loaded


def load(path, signers):
    return load_configured(Settings(Path("/nowhere"), policy=str(path), policy_signers=signers))


def refused(path, signers):
    """The rule that a policy breaks, and what is said of it."""
    with pytest.raises(PolicyInvalid) as caught:
        load(path, signers)
    assert str(caught.value).isprintable()
    return caught.value.rule, caught.value.problem


def test_a_signed_policy_loads_and_its_signer_is_known(own, keys, signers):
    loaded = signed(own, keys[0])
    assert statement(loaded.policy) == f"muniment-policy/1 own {loaded.policy.digest}\n".encode()
    assert (load(own, signers), signatures.verify_policy(loaded, signers)) == (loaded, "alice@example.com")
    own.write_text("# a comment\n" + own.read_text())
    assert load(own, signers)


@pytest.mark.threat("T-POL-04", control="signatures_asked")
def test_nothing_unsigned_loads_where_signers_are_configured_but_what_came_with_the_program(
    own, signers, tmp_path
):
    assert load(own, None)
    rule, problem = refused(own, signers)
    assert (rule, "own.toml.sig" in problem) == ("E141", True)
    assert load("hardened", signers).policy.name == "hardened"
    with pytest.raises(PolicyInvalid, match="E143"):
        signature_path(strict := load_files("strict").files[0])
    assert refused(shutil.copy(strict.path, tmp_path / "strict.toml"), signers)[0] == "E141"
    assert refused(write(tmp_path / "child.toml", extends=["strict"]), signers)[0] == "E141"


@pytest.mark.threat("T-POL-04", control="signatures_asked")
@pytest.mark.threat("T-POL-04", control="signatures_checked")
def test_a_signature_covers_the_policy_as_it_is_every_parent_and_the_name(own, keys, signers, tmp_path):
    child = Path(write(tmp_path / "child.toml", extends=["policies/own.toml"]))
    for path in (own, child):
        signed(path, keys[0])
        assert load(path, signers)
    write(own, body=NARROW)
    for path in (own, child):
        assert refused(path, signers)[0] == "E140"
    signed(own, keys[0])
    renamed = write(own.with_name("other.toml"), body=NARROW)
    shutil.copy(f"{own}.sig", f"{renamed}.sig")
    assert refused(renamed, signers)[0] == "E140"


def test_what_is_no_signature_or_by_somebody_else_or_for_something_else_is_none(own, keys, signers, tmp_path):
    loaded, signature, said = signed(own, keys[1]), Path(f"{own}.sig"), tmp_path / "said"
    said.write_bytes(statement(loaded.policy))
    assert NAMESPACE != "file"
    command = ["ssh-keygen", "-q", "-Y", "sign", "-n", "file", "-f", keys[0], said]
    subprocess.run(command, check=True, capture_output=True)
    contents = (signature.read_bytes(), Path(f"{said}.sig").read_bytes())
    for content in (*contents, b"", b"signed", b"\xff\xfe", b"#" * 300_000):
        signature.write_bytes(content)
        assert refused(own, signers)[0] == "E140"
    signature.unlink()
    os.mkfifo(signature)  # It is not waited for.
    assert refused(own, signers)[0] == "E140"


def test_without_signers_that_can_be_read_nothing_loads(own, keys, tmp_path):
    signed(own, keys[0])
    (tmp_path / "empty").write_text("")
    assert refused(own, tmp_path / "empty")[0] == "E140"
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "fifo"):
        assert refused(own, path)[0] == "E142"


def test_names_like_options_are_names_and_a_key_that_cannot_sign_is_told(keys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(keys[0], "-key")
    Path("-signers").write_text(f"-O {keys[0].with_suffix('.pub').read_text()}")
    assert verify(b"said\n", sign(b"said\n", Path("-key")), Path("-signers"), where="own") == "-O"
    Path("key").write_text("no key")
    for name in ("key", "missing", "a\0b"):
        with pytest.raises(PolicyInvalid) as caught:
            sign(b"said\n", Path(name))
        assert (caught.value.rule, str(caught.value).isprintable()) == ("E142", True)


def test_without_an_ssh_keygen_that_works_nothing_loads(own, keys, signers, tmp_path, monkeypatch):
    signed(own, keys[0])
    fake = tmp_path / "bin" / "ssh-keygen"
    fake.parent.mkdir()
    monkeypatch.setenv("PATH", str(fake.parent))
    monkeypatch.setenv("MUNIMENT_API_KEY", "canary")
    monkeypatch.setattr(signatures, "VERIFY_SECONDS", 1.0)
    for script, rule, words in (
        *(("", "E142", "install OpenSSH"), ("#!/bin/sh\nexit 3\n", "E140", "")),
        ("#!/no/such/interpreter\n", "E142", "cannot be run"),
        (f"#!/bin/sh\n/usr/bin/env > {tmp_path}/seen\n", "E140", ""),
        ("#!/bin/sh\nexec /bin/sleep 30\n", "E142", "did not respond"),
    ):
        if script:
            fake.write_text(script)
            fake.chmod(0o755)
        told = refused(own, signers)
        assert (told[0], words in told[1]) == (rule, True), script
        if "exit" in script:
            with pytest.raises(PolicyInvalid, match="ended with 3"):
                sign(b"said\n", keys[0])
    seen = (tmp_path / "seen").read_text()  # It learns nothing of the environment.
    assert ("canary" in seen, "LC_ALL=C" in seen) == (False, True)


# -- wherever a policy bounds a run


root = pytest.fixture(lambda tmp_path: make_roots(tmp_path / "memory")["user"])


@pytest.mark.threat("T-POL-04", control="signatures_asked")
def test_no_command_runs_by_an_unsigned_policy(own, keys, signers, root, tmp_path, monkeypatch):
    home, workspace = tmp_path / "home", tmp_path / "work"
    for each in (home, workspace):
        each.mkdir()
    (home / "config.toml").write_text(f'policy = "{own}"\npolicy_signers = "{signers}"\n')
    monkeypatch.setenv("MUNIMENT_HOME", str(home))
    tool = ["tool", "--policy", str(own), "--root", f"user={root}"]
    for command in (["doctor"], tool, ["ls", "--workspace", str(workspace)], ["remember", "a fact"]):
        done = invoked(command, {}, "")
        assert (done.exit_code, "E141" in done.output) == (1, True), command
    with pytest.raises(PolicyInvalid, match="E141"):
        muniment.open(workspace, home=home)
    signed(own, keys[0])
    assert invoked(tool, {}, "").exit_code == 0
    muniment.open(workspace, home=home).close()


@pytest.mark.threat("T-POL-04", control="policies_outside")
def test_no_policy_is_read_from_where_a_run_may_write(root, tmp_path):
    outside, alias = tmp_path / "policies", tmp_path / "alias"
    outside.mkdir()
    alias.symlink_to(root)
    good, bad = Path(write(outside / "good.toml")), Path(write(root / "deep" / "bad.toml", "good"))
    (root / "out.toml").symlink_to(good)
    (outside / "in.toml").symlink_to("../alias/deep/bad.toml")
    terms = {"home": tmp_path / "home", "roots": {"user": root}}
    muniment.open(outside, policy=good, **terms).close()  # From now on the zygote is there.
    parent, before = write(outside / "own.toml", extends=["../memory/user/deep/bad.toml"]), descriptors()
    for named in (bad, parent, root / "out.toml", outside / "in.toml", alias / "deep" / "bad.toml"):
        with pytest.raises(PolicyInvalid) as caught:
            muniment.Sandbox(policy=named, roots={"user": root})
        assert (caught.value.rule, "scope 'user'" in caught.value.problem) == ("E126", True)
    told = invoked(["tool", "--policy", str(named), "--root", f"user={root}"], {}, "")
    assert "E126" in told.output
    with pytest.raises(PolicyInvalid, match="E126"):
        muniment.open(outside, policy=bad, **terms)
    assert descriptors() == before


def test_a_place_that_nobody_can_look_at_is_no_place_for_a_policy(own, root, tmp_path):
    loaded = load_files(str(own))
    shutil.rmtree(own.parent)
    (tmp_path / "loop").symlink_to("loop")
    moved = replace(loaded.files[0], path=tmp_path / "loop" / "own.toml")
    for policy in (loaded, replace(loaded, files=(moved,))):
        with pytest.raises(PolicyInvalid, match=r"E126.*cannot check"):
            muniment.Sandbox(policy=policy, roots={"user": root})
