"""Pages, the lock and the workflow agree with code and files."""

import importlib.metadata
import re
import shutil

import pytest
import typer
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hashes import COMMAND as LOCKING
from hashes import LOCK, format_lock, parse_lock
from hashes import list_requirements as list_wanted
from kit.locations import REPOSITORY
from kit.server.page import ACP_PAGE, COMMAND, build_acp_page, build_page
from kit.server.page import PAGE as HTTP_PAGE
from kit.shell import find_code_blocks, get_output, read_page, run_command
from muniment.cli.app import app
from muniment.errors import CODES
from muniment.server.http import build_openapi
from muniment.server.service import OPERATIONS


def test_http_page_documents_every_operation_field_and_code():
    text = build_page()
    assert HTTP_PAGE.read_text(encoding="utf-8") == text, f"run: {COMMAND}"
    assert ACP_PAGE.read_text(encoding="utf-8") == build_acp_page(), f"run: {COMMAND}"
    for operation in OPERATIONS:
        assert f"### {operation.method} {operation.path}\n" in text
        assert all(f"`{parameter.name}`" in text for parameter in operation.parameters)
    for name, schema in build_openapi(OPERATIONS)["components"]["schemas"].items():
        section = text.split(f"### {name}\n")[1].split("\n#")[0]
        assert all(f"`{field}`" in section for field in schema.get("properties", ()))
    descriptions = (
        (code, sentence)
        for code, means in CODES.items()
        for sentence in {means.sentence, means.recall_sentence} - {""}
    )
    for code, sentence in descriptions:
        assert f"| `{code}` | {sentence} |" in text


LOCKED = LOCK.read_text()


def list_installed(texts, seen):
    """Return the names of the installed requirements, including indirect ones."""
    for wish in map(Requirement, texts):
        name = canonicalize_name(wish.name)
        if name not in seen and (wish.marker is None or wish.marker.evaluate({"extra": ""})):
            seen.add(name)
            list_installed(importlib.metadata.requires(name) or (), seen)
    return seen


def test_lock_has_all_requirements_at_constraint_versions():
    pinned = (line.partition("==") for line in read_page("constraints.txt").split())
    versions = {canonicalize_name(name): version for name, _, version in pinned}
    locked = dict(parse_lock(LOCKED).keys())
    assert list_installed(list_wanted(), set()) <= locked.keys()
    assert locked.items() <= versions.items()


def test_lock_names_its_command_and_no_origin_of_files():
    assert LOCKED.startswith(f"# Made by: {LOCKING}\n")
    assert format_lock(parse_lock(LOCKED)) == LOCKED
    assert "/" not in LOCKED.partition("\n")[2]
    assert all("requirements.lock" in read_page(page) for page in ("README.md", "docs/operations.md"))


CI = REPOSITORY / "examples" / "ci"
WORKFLOW = yaml.safe_load((CI / "policy-review.yml").read_text())
JOBS = WORKFLOW["jobs"]
STEPS = [(name, step) for name, job in JOBS.items() for step in job["steps"]]


def test_workflow_permissions_are_minimal():
    assert set(WORKFLOW[True]) == {"pull_request"}, "YAML reads `on` as true"
    assert WORKFLOW["permissions"] == {"contents": "read"}
    rights = {name: job.get("permissions") for name, job in JOBS.items()}
    assert rights == {"review": None, "comment": {"pull-requests": "write"}}
    same = "github.event.pull_request.head.repo.full_name == github.repository"
    assert same in JOBS["comment"]["if"]
    assert JOBS["comment"]["needs"] == "review"
    assert not [step for name, step in STEPS if name == "comment" and "checkout" in step.get("uses", "")]


def test_workflow_commands_contain_no_untrusted_text():
    for _, step in STEPS:
        assert "${{" not in step.get("run", "")
        if "uses" in step:
            assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"])
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


def test_workflow_installs_pinned_tool_before_checkout():
    review = [step for name, step in STEPS if name == "review"]
    (install,) = [at for at, step in enumerate(review) if "pip" in step.get("run", "")]
    (checkout,) = [at for at, step in enumerate(review) if "checkout" in step.get("uses", "")]
    assert install < checkout
    assert re.search(r" muniment==\d", review[install]["run"])
    (run,) = [step["run"] for step in review if step.get("name") == "Review"]
    assert "git show HEAD^1:ci/review_policies.sh" in run


PAGE = read_page("docs/policies.md")
# Digests, whole or shortened, which change with the shipped policies.
CHANGING = re.compile(r"\b[0-9a-f]{8,64}\b")


def split_commands(block):
    """Return each command of a block with its output."""
    parts = [part.splitlines() for part in re.split(r"^\$ ", block, flags=re.MULTILINE) if part]
    return [(head, "".join(f"{line}\n" for line in rest)) for head, *rest in parts]


def run_shell(command, home):
    """Return the output of a command, with digests replaced."""
    output = run_command("/bin/sh", "-c", f"({command}) 2>&1", home=home).stdout
    return CHANGING.sub("…", output.replace(str(home), "/home/me"))


@pytest.fixture
def home(tmp_path):
    """The files of the page, and a key for signatures."""
    for content in find_code_blocks(PAGE, "toml"):
        path = tmp_path / content.splitlines()[0].removeprefix("# ")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    if shutil.which("ssh-keygen"):
        get_output("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", "key", home=tmp_path)
        (tmp_path / "signers").write_text(f"owner@example.org {(tmp_path / 'key.pub').read_text()}")
    return tmp_path


@pytest.mark.slow
def test_every_command_of_page_prints_documented_output(home):
    listed = [each for block in find_code_blocks(PAGE) for each in split_commands(block)]
    for command, expected in listed:
        if "--key" in command and not shutil.which("ssh-keygen"):
            pytest.skip("ssh-keygen is not installed; the remaining commands are not run")
        assert run_shell(command, home) == CHANGING.sub("…", expected), command
    for name in ("lint", "explain", "test", "diff", "prove", "show", "lock", "sign", "verify"):
        assert any(f"muniment policy {name} " in command for command, _ in listed)


def test_commands_page_names_every_command():
    page = read_page("docs/commands.md")
    program = typer.main.get_command(app)
    for name, command in program.commands.items():
        assert re.search(rf"`(muniment )?{name}\b", page), name
        for each in getattr(command, "commands", ()):
            assert re.search(rf"`(muniment {name} )?{each}\b", page), f"{name} {each}"
