"""`muniment policy lock`, `sign`, `verify` and `show`."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from kit.policy.files import READ, SCOPES, write_policy
from muniment.policy.family import read_lock
from muniment.policy.files import LOCK_NAME
from muniment.policy.load import load_files, load_policy

NARROW = SCOPES + READ + "[limits]\nturns = 1\n"


@pytest.fixture
def folder(tmp_path):
    """Write two policies and one other file."""
    write_policy(tmp_path / "policies" / "base.toml")
    write_policy(tmp_path / "policies" / "own.toml", extends=["./base.toml", "strict"])
    (tmp_path / "policies" / "invariants.toml").write_text('schema = "muniment-invariants/1"\n')
    return tmp_path / "policies"


def digest(folder, name):
    return load_files(str(folder / f"{name}.toml"), unlocked=folder).policy.digest


# -- lock ----------------------------------------------------------------------------------------------


def test_lock_names_every_policy_and_skipped_file(folder, policy, tmp_path):
    path = folder / LOCK_NAME
    base, own = digest(folder, "base"), digest(folder, "own")
    table = [f"  base  —         → {base[:8]}…", f"  own   —         → {own[:8]}…"]
    expected = ["skipped invariants.toml: not a policy", *table, f"locked 2 policies: {path}"]
    assert policy.run_for_lines("lock", folder) == expected
    assert read_lock(path) == {"base": base, "own": own}
    assert [path.name for path in folder.iterdir() if path.suffix != ".toml"] == [LOCK_NAME]
    assert policy.run_for_lines("lock", folder)[-1] == f"locked 2 policies, unchanged: {path}"
    write_policy(folder / "base.toml", body=NARROW)
    (folder / "own.toml").unlink()
    now = digest(folder, "base")
    changes = [{"name": "base", "old": base, "new": now}, {"name": "own", "old": own, "new": None}]
    expected = {"status": "locked", "lock": str(path), "policies": {"base": now}, "changes": changes}
    assert policy.run_for_document("lock", folder) == expected | {"skipped": ["invariants.toml"]}
    path.write_text("rubbish")
    assert policy.run_for_lines("lock", folder)[-1] == f"locked 1 policy: {path}"
    assert read_lock(path) == {"base": now}
    assert policy.run_for_lines("lock", tmp_path) == [f"locked 0 policies: {tmp_path / LOCK_NAME}"]


def test_lock_check_writes_nothing_and_stale_lock_blocks_show(folder, policy):
    path, run = folder / LOCK_NAME, f"check the changes, then run: muniment policy lock {folder}"
    assert policy.run_for_lines("lock", folder, "--check", code=1)[-1].endswith(f"is not current; {run}")
    assert not path.exists()
    policy("lock", folder)
    before = path.read_bytes()
    assert policy.run_for_lines("lock", folder, "--check")[-1] == f"{path} is current: 2 policies"
    assert policy.run_for_document("lock", folder, "--check")["status"] == "current"
    base = write_policy(folder / "base.toml", body=NARROW)
    assert "E130" in policy("show", base).stderr
    assert policy("lint", base).exit_code == policy("diff", base, base).exit_code == 0
    assert policy.run_for_document("lock", folder, "--check", code=1)["status"] == "stale"
    assert path.read_bytes() == before
    path.write_text("rubbish")
    assert "E132" in policy.run_for_lines("lock", folder, "--check", code=1)[-1]
    assert "E132" in policy("show", base).stderr
    assert policy("lint", base).exit_code == policy("diff", base, base).exit_code == 0


def test_lock_rejects_invalid_policy_and_unwritable_file(folder, policy, tmp_path):
    policy("lock", folder)
    new, before = folder / "new.toml", (folder / LOCK_NAME).read_bytes()
    for make, code in (
        (lambda: new.write_text('schema = "muniment-policy/2"'), "E105"),
        (lambda: write_policy(new, "own"), "E124"),
        (lambda: new.symlink_to("nowhere"), "E100"),
    ):
        make()
        assert code in policy.run_for_lines("lock", folder, code=1)[-1]
        new.unlink()
    assert (folder / LOCK_NAME).read_bytes() == before
    (folder / LOCK_NAME).unlink()
    (folder / LOCK_NAME).mkdir()
    assert "cannot be written" in policy.run_for_lines("lock", folder, code=1)[-1]
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    assert "is not a folder" in policy.run_for_lines("lock", tmp_path / "nothing", code=1)[-1]


# -- sign and verify -----------------------------------------------------------------------------------


def test_policy_signature_is_created_and_verified(folder, policy, tmp_path):
    key, own, signers = tmp_path / "key", str(folder / "own.toml"), tmp_path / "signers"
    keygen_command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key]
    subprocess.run(keygen_command, check=True, capture_output=True)
    signers.write_text(f"alice {key.with_suffix('.pub').read_text()}")
    sign, verify = ("sign", own, "--key", key), ("verify", own, "--signers", signers)
    error = policy.run_for_document(*verify, code=1)["error"]
    assert (error["code"], "E141" in error["message"]) == ("policy_invalid", True)
    label = load_policy(own).label
    assert policy.run_for_lines(*sign) == [f"signed {label}: {own}.sig"]
    assert Path(f"{own}.sig").read_text().startswith("-----BEGIN SSH SIGNATURE-----\n")
    assert policy.run_for_lines(*verify) == [f"{label} is signed by alice"]
    assert "set policy_signers" in policy.run_for_lines("verify", own, code=1)[0]
    assert policy("verify", own, MUNIMENT_POLICY_SIGNERS=str(signers)).exit_code == 0
    write_policy(folder / "base.toml", body=NARROW)
    assert policy.run_for_lines(*verify, code=1)[0].startswith(f"not verified: E140 {own}: ")
    expected = {"name": "own", "path": own, "digest": load_policy(own).digest}
    assert policy.run_for_document(*sign) == {"status": "signed", **expected, "signature": f"{own}.sig"}
    assert policy.run_for_document(*verify) == {"status": "verified", **expected, "signer": "alice"}
    assert "E143" in policy.run_for_lines("sign", "strict", "--key", key, code=1)[0]
    assert "E142" in policy.run_for_lines("sign", own, "--key", signers, code=1)[0]


# -- show ----------------------------------------------------------------------------------------------


def test_policy_show_prints_the_file(folder, policy):
    own = folder / "own.toml"
    own.write_text(own.read_text() + "# \u202e\n")
    assert policy.run_for_lines("show", own) == [*own.read_text().splitlines()[:-1], "# \\u{202e}"]
    expected = {"name": "own", "path": str(own), "digest": digest(folder, "own"), "text": own.read_text()}
    assert policy.run_for_document("show", own) == expected
    assert "E120" in policy.run_for_lines("show", "nobody", code=1)[0]


def test_policy_normal_form_hash_is_the_digest(folder, policy):
    own = folder / "own.toml"
    own.write_text(own.read_text() + '[[deny]]\nid = "d"\nverbs = ["*"]\npaths = ["日本/"]\n')
    for name in (own, "strict"):
        printed = policy("show", name, "--normal").stdout_bytes
        assert hashlib.sha256(printed).hexdigest() == policy.run_for_document("show", name)["digest"]
        document = policy.run_for_document("show", name, "--normal")
        assert document["normal"].encode() == printed
        assert document["digest"] == hashlib.sha256(printed).hexdigest()
    assert (
        "\nlayer\town\t1\tdeny\td\tread\t日本/\n"
        in policy.run_for_document("show", own, "--normal")["normal"]
    )
    assert policy("show", "strict", "--normal", "--effective").exit_code == 2


CHILD = '[scopes]\nuser = { trust = "workspace", commit = "auto" }\n'
CHILD += '[[deny]]\nid = "no"\nverbs = ["*"]\npaths = ["secret/"]\nwhy = """not\nhere"""\n'
CHILD += '[limits]\nturns = 2\n[content]\nreject = ["bidi"]\n'
CHILD += '[[quota]]\nid = "few"\npaths = ["/user/**"]\nmax_files = 3\n'
PARENT = '[scopes]\nuser = { trust = "owner", commit = "review" }\n'
PARENT += '[[allow]]\nid = "r"\nverbs = ["read"]\npaths = ["/user/*.md"]\n'
PARENT += '[limits]\nturns = 5\ntool_calls = 7\n[content]\nreject = ["ansi"]\n'


def test_effective_policy_names_source_of_every_value(policy, tmp_path):
    write_policy(tmp_path / "parent.toml", body=PARENT)
    family = write_policy(tmp_path / "child.toml", body=CHILD, extends=["./parent.toml"])
    document = policy.run_for_document("show", family, "--effective")
    assert (document["label"], document["digest"]) == (load_policy(family).label, load_policy(family).digest)
    assert [file["name"] for file in document["files"]] == ["child", "parent"]
    child, parent = document["layers"]
    assert (child["name"], child["allow"], parent["deny"]) == ("child", [], [])
    (deny,) = child["deny"]
    assert (deny["id"], deny["line"], deny["why"]) == ("no", 6, "not\nhere")
    assert parent["allow"][0]["paths"] == ["/user/*.md"]
    user = {"name": "user", "trust": "workspace", "trust_from": "child", "commit": "review"}
    assert document["scopes"] == [user | {"commit_from": "parent"}]
    quotas = [(quota["id"], quota["from"], quota["line"]) for quota in document["quotas"]]
    assert quotas == [("default", "default", None), ("few", "child", 16)]
    values = {term["key"]: (term["value"], term["from"], term["line"]) for term in document["terms"]}
    assert (values["limits.turns"], values["limits.tool_calls"]) == ((2, "child", 13), (7, "parent", 12))
    assert values["limits.seconds"] == (295, "default", None)
    assert values["content.reject"] == (["ansi", "bidi"], "child, parent", None)
    lines = policy.run_for_lines("show", family, "--effective")
    assert lines[0] == f"{document['label']}  {document['digest']}"
    rule = {"  deny   no: create delete list modify read  (child:6)", "         # not here"}
    scope = "  user  trust workspace (child)  commit review (parent)"
    assert {"layer child: every layer must allow a request", "         secret/", *rule, scope} <= set(lines)
    rows = [line for line in lines if line.startswith("  limits.")]
    assert (rows[0].endswith("(child:13)"), len({row.index("(") for row in rows})) == (True, 1)
    assert any(line.startswith("  content.reject") and "ansi bidi" in line for line in lines)
    own = write_policy(tmp_path / "own.toml", body=SCOPES + READ + "[content]\nreject = []\n")
    lines = policy.run_for_lines("show", own, "--effective")
    assert any(" none " in line and "content.reject" in line for line in lines)


def test_packaged_policies_have_a_line_for_every_value(policy):
    for name in ("strict", "hardened", "clean"):
        document = policy.run_for_document("show", name, "--effective")
        assert all(term["line"] for term in document["terms"])
        assert all(rule["line"] for layer in document["layers"] for rule in (*layer["allow"], *layer["deny"]))
