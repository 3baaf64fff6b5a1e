"""`muniment policy lock`, `sign`, `verify` and `show`, as functions that print and return an exit code."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kit.policy.files import READ, SCOPES, write
from muniment.cli import policy as command
from muniment.policy.family import LOCK_NAME, read_lock
from muniment.policy.load import load_files, load_policy

NARROW = SCOPES + READ + "[limits]\nturns = 1\n"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setenv("MUNIMENT_HOME", str(home))
    return home


@pytest.fixture
def folder(tmp_path):
    """Two policies and something that is none."""
    folder = tmp_path / "policies"
    write(folder / "base.toml")
    write(folder / "own.toml", extends=["./base.toml", "strict"])
    (folder / "invariants.toml").write_text('schema = "muniment-invariants/1"\n')
    (folder / "plain.toml").write_text("schema = 1\n")
    return folder


def lock(folder, *, check=False, as_json=False):
    return command.lock(folder, check=check, as_json=as_json)


def test_a_lock_names_every_policy_of_its_folder_and_says_what_it_left_out(folder, said):
    assert lock(folder) == 0
    digests = {name: load_policy(str(folder / f"{name}.toml")).digest for name in ("base", "own")}
    assert read_lock(folder / LOCK_NAME) == digests
    assert said() == [
        "skipped invariants.toml: it is no policy",
        "skipped plain.toml: it is no policy",
        f"  base  —         → {digests['base'][:8]}…",
        f"  own   —         → {digests['own'][:8]}…",
        f"locked 2 policies: {folder / LOCK_NAME}",
    ]
    assert sorted(path.name for path in folder.iterdir())[-2:] == ["plain.toml", "policy.lock"]
    assert lock(folder) == 0
    assert said()[-1] == f"locked 2 policies, as before: {folder / LOCK_NAME}"


def test_a_lock_is_written_anew_over_the_one_that_no_longer_fits(folder, said):
    lock(folder)
    was = read_lock(folder / LOCK_NAME)
    write(folder / "base.toml", body=NARROW)
    (folder / "own.toml").unlink()
    said()
    assert lock(folder, as_json=True) == 0
    found = said(as_json=True)
    now = load_policy(str(folder / "base.toml")).digest
    assert found == {
        "status": "locked",
        "lock": str(folder / LOCK_NAME),
        "policies": {"base": now},
        "changes": [
            {"name": "base", "old": was["base"], "new": now},
            {"name": "own", "old": was["own"], "new": None},
        ],
        "skipped": ["invariants.toml", "plain.toml"],
    }
    (folder / LOCK_NAME).write_text("rubbish")
    assert lock(folder) == 0
    assert read_lock(folder / LOCK_NAME) == {"base": now}


def test_a_check_writes_nothing_and_tells_by_its_exit_code(folder, said):
    assert lock(folder, check=True) == 1
    assert said()[-1].endswith(
        f"is not current; look at what changed, then run: muniment policy lock {folder}"
    )
    assert not (folder / LOCK_NAME).exists()
    lock(folder)
    before = (folder / LOCK_NAME).read_bytes()
    assert lock(folder, check=True) == 0
    assert said()[-1] == f"{folder / LOCK_NAME} is current: 2 policies"
    (folder / "own.toml").unlink()
    assert lock(folder, check=True, as_json=True) == 1
    assert said(as_json=True)["status"] == "stale"
    assert (folder / LOCK_NAME).read_bytes() == before
    lock(folder)
    said()
    assert lock(folder, check=True, as_json=True) == 0
    assert said(as_json=True)["status"] == "current"
    (folder / LOCK_NAME).write_text("rubbish")
    assert lock(folder, check=True) == 1
    assert "E132" in said()[-1]


def test_a_folder_without_policies_has_an_empty_lock(tmp_path, said):
    assert lock(tmp_path) == 0
    assert said() == [f"locked 0 policies: {tmp_path / LOCK_NAME}"]
    write(tmp_path / "own.toml")
    assert lock(tmp_path) == 0
    assert said()[-1] == f"locked 1 policy: {tmp_path / LOCK_NAME}"


def test_a_policy_that_does_not_load_is_not_locked(folder, said):
    lock(folder)
    before = (folder / LOCK_NAME).read_bytes()
    for text, code in [("schema = ", "E102"), ('schema = "muniment-policy/2"', "E105")]:
        (folder / "new.toml").write_text(text)
        assert lock(folder) == 1
        assert code in said()[-1]
    write(folder / "new.toml", "own")
    assert lock(folder) == 1
    assert "E124" in said()[-1]
    (folder / "new.toml").unlink()
    (folder / "new.toml").symlink_to("nowhere")
    assert lock(folder) == 1
    assert "E100" in said()[-1]
    assert (folder / LOCK_NAME).read_bytes() == before


def test_a_parent_in_another_folder_is_held_to_the_lock_there(folder, tmp_path, said):
    lock(folder)
    child = tmp_path / "child"
    write(child / "child.toml", extends=["../policies/base.toml"])
    assert lock(child) == 0
    write(folder / "base.toml", body=NARROW)
    assert lock(child) == 1
    assert "E130" in said()[-1]


def test_what_cannot_be_written_is_told_and_leaves_nothing_behind(folder, said, tmp_path):
    (folder / LOCK_NAME).mkdir()
    assert lock(folder) == 1
    assert "cannot be written" in said()[-1]
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    assert lock(tmp_path / "nothing") == 1
    assert "is no folder" in said()[-1]


# -- sign and verify -------------------------------------------------------------------------------------


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, capture_output=True
    )
    (tmp_path / "signers").write_text(f"alice {path.with_suffix('.pub').read_text()}")
    return path


def test_a_policy_is_signed_beside_its_file_and_verified(folder, key, said, tmp_path):
    own, signers = str(folder / "own.toml"), tmp_path / "signers"
    label = load_policy(own).label
    assert command.sign(own, key, as_json=False) == 0
    assert said() == [f"signed {label}: {own}.sig"]
    assert Path(f"{own}.sig").read_text().startswith("-----BEGIN SSH SIGNATURE-----\n")
    assert command.verify(own, signers, as_json=False) == 0
    assert said() == [f"{label} is signed by alice"]
    write(folder / "base.toml", body=NARROW)
    assert command.verify(own, signers, as_json=False) == 1
    assert said()[0].startswith(f"not verified: E140 {own}: ")
    assert command.sign(own, key, as_json=True) == 0
    named = {"name": "own", "path": own, "digest": load_policy(own).digest}
    assert said(as_json=True) == {"status": "signed", **named, "signature": f"{own}.sig"}
    assert command.verify(own, signers, as_json=True) == 0
    assert said(as_json=True) == {"status": "verified", **named, "signer": "alice"}


def test_signers_are_the_configured_ones_unless_others_are_named(folder, key, said, tmp_path, monkeypatch):
    own = str(folder / "own.toml")
    command.sign(own, key, as_json=False)
    said()
    assert command.verify(own, None, as_json=False) == 1
    assert "set policy_signers" in said()[0]
    monkeypatch.setenv("MUNIMENT_POLICY_SIGNERS", str(tmp_path / "signers"))
    assert command.verify(own, None, as_json=False) == 0


def test_what_is_not_signed_is_told(folder, key, said, tmp_path):
    assert command.verify(str(folder / "own.toml"), tmp_path / "signers", as_json=True) == 1
    error = said(as_json=True)["error"]
    assert (error["code"], "E141" in error["message"]) == ("policy_invalid", True)
    assert command.sign("strict", key, as_json=False) == 1
    assert "E143" in said()[0]
    assert command.sign(str(folder / "own.toml"), tmp_path / "signers", as_json=False) == 1
    assert "E142" in said()[0]


# -- show ------------------------------------------------------------------------------------------------


def test_a_policy_is_shown_as_it_stands_in_its_file(folder, said):
    own = folder / "own.toml"
    own.write_text(own.read_text() + "# \u202e\n")
    assert command.show(str(own), effective=False, as_json=False) == 0
    assert said() == [*own.read_text().splitlines()[:-1], "# \\u{202e}"]
    assert command.show(str(own), effective=False, as_json=True) == 0
    digest = load_policy(str(own)).digest
    assert said(as_json=True) == {"name": "own", "path": str(own), "digest": digest, "text": own.read_text()}
    assert command.show("nobody", effective=False, as_json=False) == 1
    assert "E120" in said()[0]


CHILD = """\
[scopes]
user = { trust = "workspace" }
[[deny]]
id = "no"
verbs = ["*"]
paths = ["secret/"]
why = '''not
here'''
[limits]
turns = 2
[content]
reject = ["bidi"]
[[quota]]
id = "few"
paths = ["/user/**"]
max_files = 3
"""
PARENT = """\
[scopes]
user = { trust = "owner", commit = "review" }
[[allow]]
id = "r"
verbs = ["read"]
paths = ["/user/*.md"]
[limits]
turns = 5
tool_calls = 7
[content]
reject = ["ansi"]
"""


@pytest.fixture
def family(tmp_path):
    write(tmp_path / "parent.toml", body=PARENT)
    return write(tmp_path / "child.toml", body=CHILD, extends=["./parent.toml"])


def test_every_value_of_an_effective_policy_names_the_file_that_it_comes_from(family, said):
    assert command.show(family, effective=True, as_json=True) == 0
    shown = said(as_json=True)
    assert (shown["label"], shown["digest"]) == (load_policy(family).label, load_policy(family).digest)
    assert [file["name"] for file in shown["files"]] == ["child", "parent"]
    child, parent = shown["layers"]
    assert (child["name"], child["allow"], parent["deny"]) == ("child", [], [])
    (deny,) = child["deny"]
    assert (deny["id"], deny["line"], deny["why"]) == ("no", 6, "not\nhere")
    assert parent["allow"][0]["paths"] == ["/user/*.md"]
    assert shown["scopes"] == [
        {
            "name": "user",
            "trust": "workspace",
            "trust_from": "child",
            "commit": "review",
            "commit_from": "parent",
        }
    ]
    assert [(quota["id"], quota["from"], quota["line"]) for quota in shown["quotas"]] == [
        ("default", "default", None),
        ("few", "child", 16),
    ]
    terms = {term["key"]: (term["value"], term["from"], term["line"]) for term in shown["terms"]}
    assert terms["limits.turns"] == (2, "child", 13)
    assert terms["limits.tool_calls"] == (7, "parent", 12)
    assert terms["limits.seconds"] == (295, "default", None)
    assert terms["content.reject"] == (["ansi", "bidi"], "child, parent", None)
    assert terms["changes.conflict"] == ("fail", "default", None)


def test_an_effective_policy_is_readable_text(family, said):
    assert command.show(family, effective=True, as_json=False) == 0
    lines = said()
    assert lines[0] == f"{load_policy(family).label}  {load_policy(family).digest}"
    assert "layer child: every layer has to grant" in lines
    assert "  deny   no: create delete list modify read  (child:6)" in lines
    assert "         secret/" in lines
    assert "         # not here" in lines
    assert "  user  trust workspace (child)  commit review (parent)" in lines
    rows = [line for line in lines if line.startswith("  limits.")]
    assert rows[0].endswith("(child:13)")
    assert len({row.index("(") for row in rows}) == 1
    assert any(line.startswith("  content.reject") and "ansi bidi" in line for line in lines)


def test_no_gates_at_all_are_shown_as_none(tmp_path, said):
    own = write(tmp_path / "own.toml", body=SCOPES + READ + "[content]\nreject = []\n")
    command.show(own, effective=True, as_json=False)
    assert any(" none " in line and "content.reject" in line for line in said())


@pytest.mark.parametrize("name", ["strict", "hardened", "clean"])
def test_every_value_of_a_shipped_policy_has_a_line(name, said):
    assert command.show(name, effective=True, as_json=True) == 0
    shown = said(as_json=True)
    assert all(term["line"] for term in shown["terms"])
    assert all(rule["line"] for layer in shown["layers"] for rule in (*layer["allow"], *layer["deny"]))


def test_a_locked_policy_that_was_edited_is_not_shown(folder, said):
    lock(folder)
    write(folder / "base.toml", body=NARROW)
    said()
    assert command.show(str(folder / "base.toml"), effective=True, as_json=False) == 1
    assert "E130" in said()[0]
    assert load_files(str(folder / "base.toml"), unlocked=folder)
    assert (folder / LOCK_NAME).exists()
