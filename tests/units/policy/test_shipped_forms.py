"""Shipped policies are loaded from their normal form only if nothing differs from their reviewed files."""

import json
import shutil
import subprocess
import sys

import pytest

from kit.policy.files import catch_invalid, write_policy
from muniment.kernel.decide import parse
from muniment.policy import family, files, shipped
from muniment.policy.files import get_shipped_folder
from muniment.policy.load import load_files
from muniment.policy.shipped import FORMS_NAME, load_policy_files, render_forms

NAMES = ["ceiling", "clean", "hardened", "strict", "team"]
STRICT = "679e47dc59465a617e61001d02147b7bfbd2930f94f75aa45b4d917ad51f160f"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a copy of the folder of shipped policies that the program uses instead."""
    copy = tmp_path / "shipped"
    shutil.copytree(get_shipped_folder(), copy)
    for module in (files, family, shipped):
        monkeypatch.setattr(module, "get_shipped_folder", lambda: copy)
    return copy


@pytest.fixture
def compiled(monkeypatch):
    """Return a list of the policies that are compiled from their TOML."""
    names, real = [], load_files
    monkeypatch.setattr(
        "muniment.policy.load.load_files",
        lambda name, **options: (names.append(name), real(name, **options))[1],
    )
    return names


def test_normal_forms_of_the_package_are_current():
    """To update them: python -m muniment.policy.shipped > policies/normal_forms.json."""
    assert (get_shipped_folder() / FORMS_NAME).read_text() == render_forms()
    assert sorted(json.loads(render_forms())) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_form_gives_exactly_the_compiled_policy(name, compiled):
    expected, loaded = load_files(name), load_policy_files(name, None)
    assert compiled == []
    assert loaded == expected
    assert loaded.policy.scope_options == expected.policy.scope_options
    assert [loaded.policy.layers, loaded.policy.quotas] == [expected.policy.layers, expected.policy.quotas]
    assert (loaded.policy.text, loaded.policy.label) == (expected.policy.text, expected.policy.label)
    assert (loaded.paths, loaded.locks) == (expected.paths, expected.locks)


def test_form_of_strict_has_the_reviewed_digest():
    assert load_policy_files("strict", None).policy.digest == STRICT


def test_changed_comment_in_the_toml_compiles_it(folder, compiled):
    path = folder / "strict.toml"
    path.write_text(path.read_text() + "\n# changed\n")
    assert load_policy_files("strict", None).policy.digest == STRICT
    assert load_policy_files("hardened", None).files[1].text.endswith("# changed\n")
    assert compiled == ["strict", "hardened"]


def test_changed_rule_in_the_toml_does_not_load(folder):
    path = folder / "strict.toml"
    path.write_text(
        path.read_text().replace('"WARP.md",', "").replace("/project/WARP.md", "/project/QWEN.md")
    )
    for name in ("strict", "hardened", "clean"):
        assert catch_invalid(load_policy_files, name, None).rule == "E130"


def rewrite_form(folder, name, change):
    """Apply a function to the row of a policy in the file of normal forms."""
    path = folder / FORMS_NAME
    forms = json.loads(path.read_text())
    forms[name] = change(forms[name], forms)
    path.write_text(json.dumps(forms))


def leave_out_deny_lines(row, _forms):
    weaker = [line for line in row["form"] if "\tdeny\t" not in line]
    assert parse("\n".join(weaker), "strict").text  # It is a valid form, but of a weaker policy.
    return {**row, "form": weaker}


CHANGES = {
    "weaker": leave_out_deny_lines,
    "of another policy": lambda row, forms: {**row, "form": forms["ceiling"]["form"]},
    "other files": lambda row, forms: {**row, "files": forms["ceiling"]["files"]},
    "no files": lambda row, _: {**row, "files": {}, "form": leave_out_deny_lines(row, _)["form"]},
    "other lock": lambda row, _: {**row, "lock": "0" * 64},
    "fewer scopes": lambda row, _: {**row, "scopes": ["user"]},
    "other scope": lambda row, _: {**row, "scopes": ["user", "project", 5]},
    "not a form": lambda row, _: {**row, "form": ["muniment-policy-form/1", 5, None]},
    "not a table": lambda *_: ["form"],
    "number": lambda *_: 5,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_form_is_not_used(folder, compiled, change):
    rewrite_form(folder, "strict", change)
    loaded = load_policy_files("strict", None)
    assert (loaded.policy.digest, loaded.policy.scopes) == (STRICT, ("user", "project"))
    assert compiled == ["strict"]


@pytest.mark.parametrize("text", [None, "", "[]", "5", "{", '{"strict": null}', "[" * 100_000, "\ud800"])
def test_damaged_file_of_forms_is_not_used(folder, compiled, text):
    path = folder / FORMS_NAME
    path.unlink()
    if text is not None:
        path.write_bytes(text.encode(errors="surrogatepass"))
    assert load_policy_files("strict", None).policy.digest == STRICT
    assert compiled == ["strict"]


@pytest.mark.parametrize("change", ["missing", "comment", "other digest", "not TOML"])
def test_changed_lock_is_checked_in_full(folder, compiled, change):
    path = folder / files.LOCK_NAME
    text = path.read_text()
    path.write_text(
        {"comment": f"# x\n{text}", "other digest": text.replace("679e", "0000"), "not TOML": "="}.get(
            change, ""
        )
    )
    if change == "missing":
        path.unlink()
    codes = {"other digest": "E130", "not TOML": "E132"}
    if change in codes:
        assert catch_invalid(load_policy_files, "strict", None).rule == codes[change]
    else:
        assert load_policy_files("strict", None).policy.digest == STRICT
    assert compiled == ["strict"]


def test_own_policies_are_compiled(tmp_path, compiled):
    own = write_policy(tmp_path / "own" / "mine.toml", extends=["strict"])
    for name in (own, "mine", str(get_shipped_folder() / "strict.toml")):
        assert load_policy_files(name, tmp_path / "own") == load_files(name, policies_dir=tmp_path / "own")
        assert compiled.pop() == name
    assert load_policy_files("strict", tmp_path / "own").policy.digest == STRICT
    assert compiled == []


@pytest.mark.parametrize("name", ["strict", "hardened"])
def test_own_file_with_a_shipped_name_is_compared(tmp_path, name):
    own = tmp_path / "own" / "strict.toml"
    write_policy(own)
    assert catch_invalid(load_policy_files, name, tmp_path / "own").rule == "E124"
    own.write_text((get_shipped_folder() / "strict.toml").read_text())
    assert load_policy_files(name, tmp_path / "own") == load_files(name, policies_dir=tmp_path / "own")
    own.unlink()
    own.symlink_to("missing")
    assert catch_invalid(load_policy_files, name, tmp_path / "own").rule == "E100"


def test_form_needs_no_models_and_no_automaton():
    code = (
        "import sys; from muniment.policy.shipped import load_policy_files as load; load('strict', None);"
        "print({'pydantic', 'pathspec', 'muniment.policy.load'} & {*sys.modules})"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"
