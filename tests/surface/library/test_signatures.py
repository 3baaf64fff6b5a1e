"""Signatures, by the real ssh-keygen: if signers are configured, no run uses an unsigned policy."""

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import muniment
from kit.cli.commands import run_in_process
from kit.memories import count_descriptors, make_roots
from kit.policy.files import READ, SCOPES, write_policy
from muniment.errors import PolicyInvalid
from muniment.policy import signatures
from muniment.policy.load import load_files
from muniment.policy.signatures import NAMESPACE, build_statement, get_signature_path, sign, verify
from muniment.settings import Settings, load_configured_policy

NARROW = SCOPES + READ + "[limits]\nturns = 1\n"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Private keys of a signer and of another person."""
    paths = tuple(tmp_path_factory.mktemp("keys") / name for name in ("alice", "mallory"))
    for key in paths:
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key]
        subprocess.run(command, check=True, capture_output=True)
    return paths


@pytest.fixture
def signers(keys, tmp_path):
    path, public = tmp_path / "signers", keys[0].with_suffix(".pub").read_text()
    path.write_text(f"# who may\nalice@example.com,second {public}")
    return path


own = pytest.fixture(lambda tmp_path: Path(write_policy(tmp_path / "policies" / "own.toml")))


def sign_policy(path, key):
    """Sign the current content of a policy file."""
    loaded = load_files(str(path))
    get_signature_path(loaded.files[0]).write_bytes(sign(build_statement(loaded.policy), key))
    return loaded


def load(path, signers):
    return load_configured_policy(Settings(Path("/nowhere"), policy=str(path), policy_signers=signers))


def load_rejected(path, signers):
    """Return the rule that a policy breaks, and the problem."""
    with pytest.raises(PolicyInvalid) as caught:
        load(path, signers)
    assert str(caught.value).isprintable()
    return caught.value.rule, caught.value.problem


def test_signed_policy_loads_and_names_its_signer(own, keys, signers):
    loaded = sign_policy(own, keys[0])
    assert build_statement(loaded.policy) == f"muniment-policy/1 own {loaded.policy.digest}\n".encode()
    assert (load(own, signers), signatures.verify_policy(loaded, signers)) == (loaded, "alice@example.com")
    own.write_text("# a comment\n" + own.read_text())
    assert load(own, signers)


@pytest.mark.threat("T-POL-04", control="required_signatures")
def test_unsigned_policy_is_rejected_unless_built_in(own, signers, tmp_path):
    assert load(own, None)
    rule, problem = load_rejected(own, signers)
    assert (rule, "own.toml.sig" in problem) == ("E141", True)
    assert load("hardened", signers).policy.name == "hardened"
    with pytest.raises(PolicyInvalid, match="E143"):
        get_signature_path(strict := load_files("strict").files[0])
    assert load_rejected(shutil.copy(strict.path, tmp_path / "strict.toml"), signers)[0] == "E141"
    assert load_rejected(write_policy(tmp_path / "child.toml", extends=["strict"]), signers)[0] == "E141"


@pytest.mark.threat("T-POL-04", control="required_signatures")
@pytest.mark.threat("T-POL-04", control="signatures_checked")
def test_signature_covers_policy_parents_and_name(own, keys, signers, tmp_path):
    child = Path(write_policy(tmp_path / "child.toml", extends=["policies/own.toml"]))
    for path in (own, child):
        sign_policy(path, keys[0])
        assert load(path, signers)
    write_policy(own, body=NARROW)
    for path in (own, child):
        assert load_rejected(path, signers)[0] == "E140"
    sign_policy(own, keys[0])
    renamed = write_policy(own.with_name("other.toml"), body=NARROW)
    shutil.copy(f"{own}.sig", f"{renamed}.sig")
    assert load_rejected(renamed, signers)[0] == "E140"


def test_invalid_or_foreign_signature_is_rejected(own, keys, signers, tmp_path):
    loaded, signature, message = sign_policy(own, keys[1]), Path(f"{own}.sig"), tmp_path / "message"
    message.write_bytes(build_statement(loaded.policy))
    assert NAMESPACE != "file"
    command = ["ssh-keygen", "-q", "-Y", "sign", "-n", "file", "-f", keys[0], message]
    subprocess.run(command, check=True, capture_output=True)
    contents = (signature.read_bytes(), Path(f"{message}.sig").read_bytes())
    for content in (*contents, b"", b"signed", b"\xff\xfe", b"#" * 300_000):
        signature.write_bytes(content)
        assert load_rejected(own, signers)[0] == "E140"
    signature.unlink()
    os.mkfifo(signature)  # Reading it must not block.
    assert load_rejected(own, signers)[0] == "E140"


def test_empty_or_unreadable_signers_file_rejects_policy(own, keys, tmp_path):
    sign_policy(own, keys[0])
    (tmp_path / "empty").write_text("")
    assert load_rejected(own, tmp_path / "empty")[0] == "E140"
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "fifo"):
        assert load_rejected(own, path)[0] == "E142"


def test_option_like_names_work_and_unusable_key_raises(keys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(keys[0], "-key")
    Path("-signers").write_text(f"-O {keys[0].with_suffix('.pub').read_text()}")
    assert verify(b"said\n", sign(b"said\n", Path("-key")), Path("-signers"), where="own") == "-O"
    Path("key").write_text("no key")
    for name in ("key", "missing", "a\0b"):
        with pytest.raises(PolicyInvalid) as caught:
            sign(b"said\n", Path(name))
        assert (caught.value.rule, str(caught.value).isprintable()) == ("E142", True)


def test_broken_ssh_keygen_rejects_policy(own, keys, signers, tmp_path, monkeypatch):
    sign_policy(own, keys[0])
    fake = tmp_path / "bin" / "ssh-keygen"
    fake.parent.mkdir()
    monkeypatch.setenv("PATH", str(fake.parent))
    monkeypatch.setenv("MUNIMENT_API_KEY", "canary")
    monkeypatch.setattr(signatures, "VERIFY_SECONDS", 1.0)
    for script, rule, expected in (
        *(("", "E142", "install OpenSSH"), ("#!/bin/sh\nexit 3\n", "E140", "")),
        ("#!/no/such/interpreter\n", "E142", "cannot be run"),
        (f"#!/bin/sh\n/usr/bin/env > {tmp_path}/seen\n", "E140", ""),
        ("#!/bin/sh\nexec /bin/sleep 30\n", "E142", "did not respond"),
    ):
        if script:
            fake.write_text(script)
            fake.chmod(0o755)
        rejection = load_rejected(own, signers)
        assert (rejection[0], expected in rejection[1]) == (rule, True), script
        if "exit" in script:
            with pytest.raises(PolicyInvalid, match="ended with 3"):
                sign(b"said\n", keys[0])
    seen = (tmp_path / "seen").read_text()  # It does not inherit the environment.
    assert ("canary" in seen, "LC_ALL=C" in seen) == (False, True)


# -- every use of a policy


root = pytest.fixture(lambda tmp_path: make_roots(tmp_path / "memory")["user"])


@pytest.mark.threat("T-POL-04", control="required_signatures")
def test_commands_reject_unsigned_policy(own, keys, signers, root, tmp_path, monkeypatch):
    home, workspace = tmp_path / "home", tmp_path / "work"
    for each in (home, workspace):
        each.mkdir()
    (home / "config.toml").write_text(f'policy = "{own}"\npolicy_signers = "{signers}"\n')
    monkeypatch.setenv("MUNIMENT_HOME", str(home))
    tool = ["tool", "--policy", str(own), "--root", f"user={root}"]
    for command in (["doctor"], tool, ["ls", "--workspace", str(workspace)], ["remember", "a fact"]):
        done = run_in_process(command, {}, "")
        assert (done.exit_code, "E141" in done.output) == (1, True), command
    with pytest.raises(PolicyInvalid, match="E141"):
        muniment.open(workspace, home=home)
    sign_policy(own, keys[0])
    assert run_in_process(tool, {}, "").exit_code == 0
    muniment.open(workspace, home=home).close()


@pytest.mark.threat("T-POL-04", control="policies_outside")
def test_policy_inside_writable_root_is_rejected(root, tmp_path):
    outside, alias = tmp_path / "policies", tmp_path / "alias"
    outside.mkdir()
    alias.symlink_to(root)
    good, bad = (
        Path(write_policy(outside / "good.toml")),
        Path(write_policy(root / "deep" / "bad.toml", "good")),
    )
    (root / "out.toml").symlink_to(good)
    (outside / "in.toml").symlink_to("../alias/deep/bad.toml")
    options = {"home": tmp_path / "home", "roots": {"user": root}}
    muniment.open(outside, policy=good, **options).close()  # This starts the zygote, which then stays.
    parent, before = (
        write_policy(outside / "own.toml", extends=["../memory/user/deep/bad.toml"]),
        count_descriptors(),
    )
    for named in (bad, parent, root / "out.toml", outside / "in.toml", alias / "deep" / "bad.toml"):
        with pytest.raises(PolicyInvalid) as caught:
            muniment.Sandbox(policy=named, roots={"user": root})
        assert (caught.value.rule, "scope 'user'" in caught.value.problem) == ("E126", True)
    result = run_in_process(["tool", "--policy", str(named), "--root", f"user={root}"], {}, "")
    assert "E126" in result.output
    with pytest.raises(PolicyInvalid, match="E126"):
        muniment.open(outside, policy=bad, **options)
    assert count_descriptors() == before


def test_policy_in_unreadable_directory_is_rejected(own, root, tmp_path):
    loaded = load_files(str(own))
    shutil.rmtree(own.parent)
    (tmp_path / "loop").symlink_to("loop")
    moved = replace(loaded.files[0], path=tmp_path / "loop" / "own.toml")
    for policy in (loaded, replace(loaded, files=(moved,))):
        with pytest.raises(PolicyInvalid, match=r"E126.*cannot check"):
            muniment.Sandbox(policy=policy, roots={"user": root})
