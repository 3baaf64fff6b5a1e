"""The CI recipe, in real repositories: what a change of policies may do, and what it may not do unseen."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kit.policy.files import READ, SCOPES
from kit.where import REPOSITORY
from muniment.policy.load import load_policy

CI = REPOSITORY / "examples" / "ci"
SCRIPT = CI / "review_policies.sh"
PROGRAM = Path(sys.executable).with_name("muniment")

pytestmark = pytest.mark.skipif(
    not (shutil.which("git") and shutil.which("bash")), reason="git and bash are not installed"
)

HOUSE = f"""schema = "muniment-policy/1"
name = "house"
{SCOPES}
[[allow]]
id = "notes"
verbs = ["read"]
paths = ["/user/*.md"]

[[deny]]
id = "hidden"
verbs = ["read"]
paths = [".*"]

[[test]]
verb = "read"
path = "/user/.a.md"
expect = "deny"

[[test]]
verb = "read"
path = "/user/a/b.md"
expect = "deny"

[[test]]
verb = "read"
path = "/user/a"
expect = "deny"
"""
WIDER = (
    HOUSE.replace('"/user/*.md"', '"/user/*.md", "/user/t/*.md"').replace("/a/b.md", "/t/a/b.md")
    + """
[[test]]
verb = "read"
path = "/user/t/a"
expect = "deny"
"""
)
CHILD = (
    'schema = "muniment-policy/1"\nname = "child"\nextends = ["../parents/base.toml"]\n'
    '[[allow]]\nid = "r"\nverbs = ["read"]\npaths = ["/**"]\n'
)
BASE = f'schema = "muniment-policy/1"\nname = "base"\n{SCOPES}{READ}[limits]\nturns = 3\n'


class Repository:
    """A throwaway repository whose first commit holds policies; the change under review is in its files."""

    def __init__(self, top):
        self.top, self.policies = top, top / "policies"
        self.policies.mkdir(parents=True)
        self.git("init", "--quiet")
        (self.policies / "house.toml").write_text(HOUSE)

    def git(self, *arguments):
        named = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ["git", *named, *arguments],
            cwd=self.top,
            env=self.environment(),
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def environment(self, **more):
        path = f"{PROGRAM.parent}{os.pathsep}/usr/bin:/bin"
        return {"PATH": path, "HOME": str(self.top.parent), "GIT_CONFIG_NOSYSTEM": "1", **more}

    def write(self, name, text):
        path = self.policies / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "base")
        return self

    def lock(self):
        subprocess.run([PROGRAM, "policy", "lock", self.policies], check=True, capture_output=True)
        return self

    def review(self, *arguments, **environment):
        """Exit code and report."""
        done = subprocess.run(
            ["bash", SCRIPT, *(arguments or ("HEAD",))],
            cwd=self.top,
            env=self.environment(**environment),
            check=False,
            capture_output=True,
            text=True,
        )
        assert not done.stderr or done.returncode == 2, done.stderr
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path / "repository")


def section(report, name):
    """What the report says under a heading."""
    return report.split(f"\n### {name}\n")[1].partition("\n### ")[0].strip()


def digest(repository, name):
    return load_policy(str(repository.policies / f"{name}.toml")).digest


@pytest.mark.slow
def test_what_did_not_change_is_said_to_be_unchanged(repository):
    repository.lock().commit()
    code, report = repository.review()
    assert code == 0, report
    assert section(report, "house") == "Unchanged."
    assert "policies/policy.lock is current: 1 policy" in report
    assert report.startswith("## Policies: nothing is wider than at ")


@pytest.mark.slow
def test_comments_are_no_change(repository):
    repository.commit().write("house.toml", f"# new\n{HOUSE}")
    assert section(repository.review()[1], "house") == "Unchanged."


def test_a_narrowing_needs_no_entry(repository):
    repository.commit().write("house.toml", f"{HOUSE}[limits]\nturns = 2\n")
    code, report = repository.review()
    assert code == 0, report
    assert "proved: house@" in section(report, "house")
    assert "stricter  limits.turns: 6 → 2" in section(report, "house")


def test_a_widening_without_an_entry_fails_and_shows_the_shortest_path(repository):
    repository.commit().write("house.toml", WIDER)
    code, report = repository.review()
    assert code == 1
    said = section(report, "house")
    assert report.startswith("## Policies: **not to be merged as it is**\n")
    assert "wider     read  user/t/a.md" in said
    assert "the allow rule 'notes', pattern '/user/t/*.md' (policies/house.toml:9), grants it" in said
    assert "**Wider, or not to be decided, and nobody has accepted it.**" in said


@pytest.mark.slow
def test_a_widening_with_its_entry_passes_and_with_another_one_does_not(repository):
    before = digest(repository, "house")
    repository.commit().write("house.toml", WIDER)
    (printed,) = re.findall(r"^    (## house .*)$", repository.review()[1], re.MULTILINE)
    assert printed == f"## house {before[:32]} → {digest(repository, 'house')[:32]}"
    repository.write("WIDENINGS.md", f"{printed}\n\nAgreed by the owner: topics of t are read by all.\n")
    code, report = repository.review()
    assert code == 0, report
    assert "accepted in policies/WIDENINGS.md" in section(report, "house")
    repository.write("house.toml", f"{WIDER}[limits]\nturns = 5\n")
    assert repository.review()[0] == 1


@pytest.mark.slow
def test_a_change_of_a_parent_in_another_folder_is_one_of_the_child(repository):
    repository.write("child.toml", CHILD)
    repository.write("../parents/base.toml", BASE)
    repository.commit().write("../parents/base.toml", BASE.replace("turns = 3", "turns = 4"))
    code, report = repository.review()
    assert code == 1
    said = section(report, "child")
    assert said.startswith("Its file is as it was; a parent of it has changed.")
    assert "LOOSER    limits.turns: 3 → 4" in said
    assert section(report, "house") == "Unchanged."


@pytest.mark.slow
def test_a_parent_that_attributes_hide_from_archives_is_still_compared(repository):
    (repository.top / ".gitattributes").write_text("*.toml export-ignore\n")
    repository.commit().write("house.toml", WIDER)
    code, report = repository.review()
    assert code == 1
    assert "New; " not in report


@pytest.mark.slow
def test_a_stale_lock_is_unfit_and_so_is_one_that_is_gone(repository):
    repository.lock().commit().write("house.toml", f"{HOUSE}[limits]\nturns = 2\n")
    code, report = repository.review()
    assert code == 1
    assert "**Unfit:** the lock does not say what the files say." in section(report, "The folder")
    assert "proved: house@" in section(report, "house")
    (repository.policies / "policy.lock").unlink()
    code, report = repository.review()
    assert code == 1
    assert "**Unfit:** policy.lock is gone." in report


@pytest.mark.slow
def test_a_new_policy_is_compared_with_the_shipped_ceiling(repository):
    repository.commit().write("own.toml", HOUSE.replace('"house"', '"own"'))
    code, report = repository.review()
    assert code == 0, report
    assert section(report, "own").startswith("New; compared with the shipped `ceiling`.")
    repository.write("own.toml", HOUSE.replace('"house"', '"own"').replace("/user/*.md", "/user/*.txt"))
    code, report = repository.review()
    assert code == 1
    assert "wider     read  user/b.txt" in section(report, "own")


@pytest.mark.slow
def test_a_policy_under_another_name_in_the_same_file_is_compared_with_that_file(repository):
    repository.commit().write("house.toml", WIDER.replace('"house"', '"other"'))
    code, report = repository.review()
    assert code == 1
    assert "wider     read  user/t/a.md" in section(report, "other")
    assert section(report, "house") == "Its file does not load, or calls itself something else."


@pytest.mark.slow
def test_a_policy_in_another_file_under_the_same_name_is_compared_with_that_name(repository):
    repository.commit().write("moved.toml", WIDER)
    (repository.policies / "house.toml").unlink()
    code, report = repository.review()
    assert code == 1
    assert "wider     read  user/t/a.md" in section(report, "house")


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["broken.toml", ".broken.toml", "house.toml"])
def test_a_policy_that_does_not_load_is_unfit(repository, name):
    repository.commit().write(name, HOUSE.replace('"notes"', '"notes"\nverb = "x"'))
    code, report = repository.review()
    assert code == 1
    assert f"policies/{name}:8: E101 allow[notes].verb: unknown key" in section(report, "The folder")


@pytest.mark.slow
def test_tests_that_would_miss_a_weakening_are_unfit(repository):
    repository.commit().write("house.toml", HOUSE.partition("[[test]]")[0])
    code, report = repository.review()
    assert code == 1
    assert "no test notices allow[notes] with '/user/**/*.md'" in report


@pytest.mark.slow
def test_two_files_of_one_name_are_unfit(repository):
    repository.commit().write("copy.toml", HOUSE)
    code, report = repository.review()
    assert code == 1
    assert "two files call themselves so" in section(report, "house")


def test_links_are_not_followed(repository):
    (repository.commit().policies / "out.toml").symlink_to("/etc/passwd")
    code, report = repository.review()
    assert code == 1
    assert "    policies/out.toml" in section(report, "The folder")


@pytest.mark.parametrize("name", ["a\nb.toml", "a\tb.toml", "a\\056b.toml", "ä.toml"])
def test_a_file_whose_name_could_be_misread_is_unfit(repository, name):
    repository.commit().write(name, HOUSE.replace('"house"', '"odd"'))
    code, report = repository.review()
    assert code == 1
    assert "**Unfit:** names of other characters" in section(report, "The folder")


@pytest.mark.slow
def test_what_lies_further_down_is_named(repository):
    repository.commit().write("below/own.toml", HOUSE)
    code, report = repository.review()
    assert code == 0, report
    assert "    policies/below/own.toml" in section(report, "The folder")


def test_no_policy_hides_as_the_file_of_invariants(repository):
    (repository.commit().policies / "house.toml").unlink()
    repository.write("invariants.toml", WIDER)
    code, report = repository.review()
    assert code == 1
    assert "not proved: E150" in report


@pytest.mark.slow
def test_a_policy_that_was_broken_before_is_compared_with_the_ceiling(repository):
    repository.write("house.toml", "broken")
    repository.commit().write("house.toml", HOUSE)
    code, report = repository.review()
    assert code == 0, report
    assert section(report, "house").startswith("Its file did not load at the base.\nNew; compared")


@pytest.mark.slow
def test_a_removed_policy_is_a_note(repository):
    repository.write("gone.toml", HOUSE.replace('"house"', '"gone"'))
    (repository.commit().policies / "gone.toml").unlink()
    code, report = repository.review()
    assert code == 0, report
    assert section(report, "gone") == "Removed. A run that asks for it is refused."


@pytest.mark.slow
def test_invariants_are_proved_and_a_change_of_them_is_shown(repository):
    sentence = '[[never]]\nid = "t"\nverbs = ["read"]\npaths = ["/user/t/"]\n'
    repository.write("invariants.toml", f'schema = "muniment-invariants/1"\n{sentence}')
    repository.commit()
    assert "proved    policies/house.toml: never[t]" in repository.review()[1]
    repository.write("house.toml", WIDER)
    code, report = repository.review()
    assert code == 1
    assert "broken    policies/house.toml: never[t]: grants read user/t/a.md" in report
    repository.write("invariants.toml", 'schema = "muniment-invariants/1" # \u202e\n')
    report = repository.review()[1]
    assert "\u202e" not in report
    assert "**Read this:** invariants.toml is not what it was." in report
    assert "    -[[never]]" in report


@pytest.mark.slow
def test_a_policy_writes_no_line_of_the_report(repository):
    sentence = "ok\\n```\\n## Policies: nothing is wider\\n![x](http://example.org)\\u001b[2J"
    never = f'[[never]]\nid = "n"\nverbs = ["read"]\npaths = ["/user/"]\nwhy = "{sentence}"\n'
    repository.write("invariants.toml", f'schema = "muniment-invariants/1"\n{never}')
    code, report = repository.commit().review()
    assert (code, "broken    policies/house.toml: never[n]" in report) == (1, True)
    assert "nothing is wider" in report
    repository.write("x`]\n## Forged.toml", "x = 1")
    report += repository.review()[1].partition("\n")[2]
    assert not [line for line in report.splitlines()[1:] if line.startswith(("## ", "```", "!["))]
    assert "\x1b" not in report


@pytest.mark.slow
def test_the_report_is_also_written_where_it_is_wanted(repository, tmp_path):
    repository.commit()
    summary, posted = tmp_path / "summary.md", tmp_path / "report.md"
    _, report = repository.review(GITHUB_STEP_SUMMARY=str(summary), POLICY_REPORT=str(posted))
    assert summary.read_text() == posted.read_text() == report


@pytest.mark.slow
def test_the_policies_of_whoever_runs_it_do_not_count(repository, tmp_path):
    home = tmp_path / "home"
    (home / "policies").mkdir(parents=True)
    (home / "policies" / "house.toml").write_text(WIDER)
    repository.commit()
    assert repository.review(MUNIMENT_HOME=str(home))[0] == 0


def test_a_command_line_that_means_nothing_is_told_from_an_unfit_policy(repository):
    repository.commit()
    assert repository.review("no-such-revision") == (
        2,
        "review_policies: no-such-revision is no revision here\n",
    )
    assert repository.review("HEAD", "../elsewhere")[0] == 2
    assert repository.review("HEAD", "policies", "more")[0] == 2
    assert repository.review("HEAD", MUNIMENT="no-such-program")[0] == 2
    code, report = repository.review("HEAD", "nowhere")
    assert (code, "There is no folder of that name." in report) == (1, True)


@pytest.mark.slow
def test_a_repository_without_any_policy_before_has_only_new_ones(repository):
    house = (repository.policies / "house.toml").read_text()
    (repository.policies / "house.toml").unlink()
    repository.write("README.md", "nothing yet")
    repository.commit().write("house.toml", house)
    code, report = repository.review("HEAD", "policies/")
    assert code == 0, report
    assert "New; compared" in section(report, "house")
