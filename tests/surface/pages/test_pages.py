"""Pages, the lock and the workflow are what code and files say now."""

import importlib.metadata
import re
import shutil

import pytest
import typer
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hashes import COMMAND as LOCKING
from hashes import LOCK, read, wanted, written
from kit.server.page import ACP_PAGE, COMMAND, acp_page, page
from kit.server.page import PAGE as HTTP_PAGE
from kit.shell import blocks_of, printed, run, text_of
from kit.where import REPOSITORY
from muniment.cli.app import app
from muniment.errors import CODES
from muniment.server.http import document_of
from muniment.server.service import OPERATIONS


def test_the_page_about_http_is_up_to_date_and_tells_of_every_request_parameter_field_and_code():
    text = page()
    assert HTTP_PAGE.read_text(encoding="utf-8") == text, f"run: {COMMAND}"
    assert ACP_PAGE.read_text(encoding="utf-8") == acp_page(), f"run: {COMMAND}"
    for operation in OPERATIONS:
        assert f"### {operation.method} {operation.path}\n" in text
        assert all(f"`{parameter.name}`" in text for parameter in operation.parameters)
    for name, schema in document_of(OPERATIONS)["components"]["schemas"].items():
        section = text.split(f"### {name}\n")[1].split("\n#")[0]
        assert all(f"`{field}`" in section for field in schema.get("properties", ()))
    told = ((code, said) for code, means in CODES.items() for said in {means.sentence, means.recall} - {""})
    for code, sentence in told:
        assert f"| `{code}` | {sentence} |" in text


LOCKED = LOCK.read_text()


def needed(texts, seen):
    """What these need here, by what is installed."""
    for wish in map(Requirement, texts):
        name = canonicalize_name(wish.name)
        if name not in seen and (wish.marker is None or wish.marker.evaluate({"extra": ""})):
            seen.add(name)
            needed(importlib.metadata.requires(name) or (), seen)
    return seen


def test_the_lock_has_all_that_is_needed_at_the_versions_of_the_constraints():
    pinned = (line.partition("==") for line in text_of("constraints.txt").split())
    versions = {canonicalize_name(name): version for name, _, version in pinned}
    locked = dict(read(LOCKED).keys())
    assert needed(wanted(), set()) <= locked.keys()
    assert locked.items() <= versions.items()


def test_the_lock_names_its_command_and_no_place_that_files_came_from_and_pages_name_it():
    assert LOCKED.startswith(f"# Made by: {LOCKING}\n")
    assert written(read(LOCKED)) == LOCKED
    assert "/" not in LOCKED.partition("\n")[2]
    assert all("requirements.lock" in text_of(page) for page in ("README.md", "docs/operations.md"))


CI = REPOSITORY / "examples" / "ci"
WORKFLOW = yaml.safe_load((CI / "policy-review.yml").read_text())
JOBS = WORKFLOW["jobs"]
STEPS = [(name, step) for name, job in JOBS.items() for step in job["steps"]]


def test_the_workflow_has_no_rights_of_the_base_and_only_what_holds_nothing_of_the_request_may_write():
    assert set(WORKFLOW[True]) == {"pull_request"}, "YAML reads `on` as true"
    assert WORKFLOW["permissions"] == {"contents": "read"}
    rights = {name: job.get("permissions") for name, job in JOBS.items()}
    assert rights == {"review": None, "comment": {"pull-requests": "write"}}
    same = "github.event.pull_request.head.repo.full_name == github.repository"
    assert same in JOBS["comment"]["if"]
    assert JOBS["comment"]["needs"] == "review"
    assert not [step for name, step in STEPS if name == "comment" and "checkout" in step.get("uses", "")]


def test_nothing_that_others_wrote_becomes_part_of_a_command():
    for _, step in STEPS:
        assert "${{" not in step.get("run", "")
        if "uses" in step:
            assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"])
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


def test_the_tool_is_pinned_and_comes_before_the_checkout_and_the_script_from_the_base():
    review = [step for name, step in STEPS if name == "review"]
    (install,) = [at for at, step in enumerate(review) if "pip" in step.get("run", "")]
    (checkout,) = [at for at, step in enumerate(review) if "checkout" in step.get("uses", "")]
    assert install < checkout
    assert re.search(r" muniment==\d", review[install]["run"])
    (run,) = [step["run"] for step in review if step.get("name") == "Review"]
    assert "git show HEAD^1:ci/review_policies.sh" in run


PAGE = text_of("docs/policies.md")
# Digests, whole or cut: they change with the shipped policies.
CHANGING = re.compile(r"\b[0-9a-f]{8,64}\b")


def commands(block):
    """Each command of a block with the lines that follow it."""
    parts = [part.splitlines() for part in re.split(r"^\$ ", block, flags=re.MULTILINE) if part]
    return [(head, "".join(f"{line}\n" for line in rest)) for head, *rest in parts]


def shown(command, home):
    """What a command prints, digests replaced."""
    said = run("/bin/sh", "-c", f"({command}) 2>&1", home=home).stdout
    return CHANGING.sub("…", said.replace(str(home), "/home/me"))


@pytest.fixture
def home(tmp_path):
    """The files of the page, and a key to sign with."""
    for content in blocks_of(PAGE, "toml"):
        path = tmp_path / content.splitlines()[0].removeprefix("# ")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    if shutil.which("ssh-keygen"):
        printed("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", "key", home=tmp_path)
        (tmp_path / "signers").write_text(f"owner@example.org {(tmp_path / 'key.pub').read_text()}")
    return tmp_path


@pytest.mark.slow
def test_every_command_of_the_page_prints_what_is_shown(home):
    listed = [each for block in blocks_of(PAGE) for each in commands(block)]
    for command, expected in listed:
        if "--key" in command and not shutil.which("ssh-keygen"):
            pytest.skip("there is no ssh-keygen to sign with; what follows is not run")
        assert shown(command, home) == CHANGING.sub("…", expected), command
    for name in ("lint", "explain", "test", "diff", "prove", "show", "lock", "sign", "verify"):
        assert any(f"muniment policy {name} " in command for command, _ in listed)


def test_the_page_about_commands_names_all_of_them():
    page = text_of("docs/commands.md")
    program = typer.main.get_command(app)
    for name, command in program.commands.items():
        assert re.search(rf"`(muniment )?{name}\b", page), name
        for each in getattr(command, "commands", ()):
            assert re.search(rf"`(muniment {name} )?{each}\b", page), f"{name} {each}"
