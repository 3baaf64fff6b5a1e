"""The CI recipe in real repositories: policy changes that pass, and policy changes that need a person."""

import shutil

import pytest

from kit.locations import REPOSITORY
from kit.policy.files import READ, SCOPES
from kit.shell import get_output, run_command
from muniment.policy.load import load_policy

SCRIPT = REPOSITORY / "examples" / "ci" / "review_policies.sh"

is_possible = shutil.which("git") and shutil.which("bash")
pytestmark = pytest.mark.skipif(not is_possible, reason="git and bash are not installed")


def deny_tests(*paths):
    return "".join(f'[[test]]\nverb = "read"\npath = "/user/{path}"\nexpect = "deny"\n' for path in paths)


def policy(name="house", *, narrower=False, wider=False, paths='"/user/*.md"', tested=True):
    allowed = paths + ', "/user/t/*.md"' * wider
    denied_paths = (".a.md", "t/a/b.md", "a", "t/a") if wider else (".a.md", "a/b.md", "a")
    return (
        f'schema = "muniment-policy/1"\nname = "{name}"\n{SCOPES}'
        f'[[allow]]\nid = "notes"\nverbs = ["read"]\npaths = [{allowed}]\n'
        '[[deny]]\nid = "hidden"\nverbs = ["read"]\npaths = [".*"]\n'
        + deny_tests(*denied_paths) * tested
        + "[limits]\nturns = 2\n" * narrower
    )


def invariants(*sentences, why=""):
    found = (f'[[never]]\nid = "{name}"\nverbs = ["read"]\npaths = ["{path}"]\n' for name, path in sentences)
    return 'schema = "muniment-invariants/1"\n' + "".join(each + why for each in found)


class Repository:
    """A throwaway repository with policies in its first commit and the change under review in its files."""

    def __init__(self, top):
        self.top, self.policies = top, top / "policies"
        self.policies.mkdir(parents=True)
        self.git("init", "--quiet")
        self.write({"house.toml": policy()})

    def git(self, *arguments):
        named = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
        return get_output("git", *named, *arguments, home=self.top, GIT_CONFIG_NOSYSTEM="1")

    def write(self, files):
        """Write files by name; delete those whose text is None."""
        for name, text in files.items():
            path = self.policies / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink() if text is None else path.write_text(text)

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "base")
        return self

    def lock(self):
        get_output("muniment", "policy", "lock", self.policies, home=self.top)

    def review(self, *arguments, **environment):
        """Return exit code and report."""
        command = ("bash", SCRIPT, *(arguments or ("HEAD",)))
        done = run_command(*command, home=self.top, GIT_CONFIG_NOSYSTEM="1", **environment)
        assert not done.stderr or done.returncode == 2, done.stderr
        return done.returncode, done.stdout + done.stderr

    def digest(self):
        return load_policy(str(self.policies / "house.toml")).digest[:32]


repository = pytest.fixture(lambda tmp_path: Repository(tmp_path / "repository"))


def read_section(report, name):
    """Return the text of the report under a heading."""
    return report.split(f"\n### {name}\n")[1].partition("\n### ")[0].strip()


@pytest.mark.timeout(120)
def test_wider_policy_fails_with_shortest_path(repository):
    before = repository.commit().digest()
    repository.write({"house.toml": policy(wider=True)})
    code, report = repository.review()
    assert code == 1
    assert report.startswith("## Policies: **do not merge as is**\n")
    text = read_section(report, "house")
    assert "wider     read  user/t/a.md" in text
    assert "the allow rule 'notes', pattern '/user/t/*.md' (policies/house.toml:8), now allows it" in text
    assert "**Wider or undecided, and not accepted.**" in text
    assert f"\n    ## house {before} → {repository.digest()}\n" in report


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_unchanged_or_accepted_policies_pass_with_report(repository, tmp_path):
    base = {f"{name}.toml": policy(name) for name in ("narrow", "gone", "commented")}
    repository.write({**base, "mended.toml": "broken", "same.toml": policy("same")})
    before = repository.commit().digest()
    repository.write({"house.toml": policy(wider=True), "narrow.toml": policy("narrow", narrower=True)})
    repository.write({"commented.toml": f"# new\n{policy('commented')}", "mended.toml": policy("mended")})
    repository.write({"own.toml": policy("own"), "below/own.toml": policy(), "gone.toml": None})
    repository.write({"WIDENINGS.md": f"## house {before} → {repository.digest()}\n\nAgreed by the owner.\n"})
    repository.lock()
    home, summary, posted = (tmp_path / name for name in ("home", "summary.md", "report.md"))
    (home / "policies").mkdir(parents=True)
    # The policies of the user who runs the script are not read.
    (home / "policies" / "same.toml").write_text(policy("same", wider=True))
    environment = {
        "GITHUB_STEP_SUMMARY": str(summary),
        "POLICY_REPORT": str(posted),
        "MUNIMENT_HOME": str(home),
    }
    code, report = repository.review(**environment)
    assert code == 0, report
    assert summary.read_text() == posted.read_text() == report
    assert report.startswith("## Policies: no policy is wider than at ")
    assert read_section(report, "same") == read_section(report, "commented") == "Unchanged."
    assert "policies/policy.lock is current: 6 policies" in report
    assert "accepted in policies/WIDENINGS.md" in read_section(report, "house")
    assert "proved: narrow@" in read_section(report, "narrow")
    assert "stricter  limits.turns: 6 → 2" in read_section(report, "narrow")
    assert read_section(report, "own").startswith("New; compared with the shipped `ceiling`.")
    assert read_section(report, "mended").startswith("Its file did not load at the base.\nNew; compared")
    assert read_section(report, "gone") == "Removed. A run that requests it is rejected."
    assert "    policies/below/own.toml" in read_section(report, "The folder")
    repository.write({"house.toml": policy(wider=True) + "[limits]\nturns = 5\n"})
    assert repository.review()[0] == 1  # Wider than the accepted version.


FORGED = "ok\\n```\\n## Policies: nothing is wider\\n![x](http://example.org)\\u001b[2J"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_unfit_policies_are_reported_with_location(repository):
    child = f'schema = "muniment-policy/1"\nname = "child"\nextends = ["../parents/base.toml"]\n{READ}'
    parent = f'schema = "muniment-policy/1"\nname = "base"\n{SCOPES}{READ}[limits]\nturns = 3\n'
    sentences = invariants(("t", "/user/t/"), ("n", "/user/"), why=f'why = "{FORGED}"\n')
    (repository.top / ".gitattributes").write_text("*.toml export-ignore\n")  # Hides nothing.
    repository.write({"../parents/base.toml": parent, "child.toml": child, "moved.toml": policy("moved")})
    repository.write({"file.toml": policy("renamed")})
    repository.lock()
    repository.write({"invariants.toml": sentences})
    repository.commit()
    repository.write({"../parents/base.toml": parent.replace("turns = 3", "turns = 4")})
    repository.write({"file.toml": policy("other", wider=True), "moved.toml": None, "copy.toml": policy()})
    repository.write(
        {"elsewhere.toml": policy("moved", wider=True), "weak.toml": policy("weak", tested=False)}
    )
    repository.write({"own.toml": policy("own", paths='"/user/*.txt"')})
    code, report = repository.review()
    assert code == 1
    assert read_section(report, "child").startswith("Its file is unchanged; a parent changed.")
    assert "LOOSER    limits.turns: 3 → 4" in read_section(report, "child")
    assert "wider     read  user/t/a.md" in read_section(report, "other")
    assert read_section(report, "renamed") == "Its file does not load, or has another name now."
    assert "wider     read  user/t/a.md" in read_section(report, "moved")
    assert "New; " not in read_section(report, "moved")
    assert "two files have this name" in read_section(report, "house")
    assert "wider     read  user/z.txt" in read_section(report, "own")
    assert "no test detects allow[notes] with '/user/**/*.md'" in report
    assert "**Unfit:** policy.lock does not match the files." in read_section(report, "The folder")
    assert "proved    policies/house.toml: never[t]" in report
    assert "broken    policies/elsewhere.toml: never[t]: allows read user/t/a.md" in report
    assert "broken    policies/house.toml: never[n]" in report
    assert "nothing is wider" in report
    deleted = {path.name: None for path in repository.policies.iterdir() if path.name != "house.toml"}
    repository.write({**deleted, "invariants.toml": invariants().replace("\n", " # \u202e\n")})
    repository.write({".broken.toml": policy("broken").replace('"notes"', '"notes"\nverb = "x"')})
    code, after = repository.review()
    assert (code, "**Unfit:** policy.lock was deleted." in after) == (1, True)
    assert "policies/.broken.toml:7: E101 allow[notes].verb: unknown key" in read_section(after, "The folder")
    assert "\u202e" not in after
    assert "**Read this:** invariants.toml changed." in after
    assert "    -[[never]]" in after
    repository.write({"x`]\n## Forged.toml": "x = 1"})
    lines = [*report.splitlines()[1:], *after.splitlines()[1:], *repository.review()[1].splitlines()[1:]]
    assert not [line for line in lines if line.startswith(("## ", "```", "![")) or "\x1b" in line]


@pytest.mark.slow
def test_policy_named_as_invariants_file_fails(repository):
    repository.commit().write({"house.toml": None, "invariants.toml": policy(wider=True)})
    code, report = repository.review()
    assert (code, "not proved: E150" in report) == (1, True)


def test_links_and_ambiguous_file_names_are_unfit(repository):
    repository.commit()
    for name in ("a\nb.toml", "a\tb.toml", "a\\056b.toml", "ä.toml"):
        repository.write({name: policy("odd")})
        code, report = repository.review()
        assert code == 1
        assert "**Unfit:** names with characters other" in read_section(report, "The folder")
        repository.write({name: None})
    outside = repository.top.parent / "outside.toml"
    outside.write_text(policy("outside"))
    (repository.policies / "out.toml").symlink_to(outside)
    code, report = repository.review()
    assert (code, "    policies/out.toml" in read_section(report, "The folder")) == (1, True)


def test_invalid_command_line_differs_from_unfit_policy(repository):
    repository.commit()
    message = "review_policies: unknown revision no-such-revision\n"
    assert repository.review("no-such-revision") == (2, message)
    assert repository.review("HEAD", "../elsewhere")[0] == 2
    assert repository.review("HEAD", "policies", "more")[0] == 2
    assert repository.review("HEAD", MUNIMENT="no-such-program")[0] == 2
    code, report = repository.review("HEAD", "nowhere")
    assert (code, "Folder not found." in report) == (1, True)
