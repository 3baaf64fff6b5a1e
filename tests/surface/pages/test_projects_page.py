"""Every command of the page about projects works, in the order of the page."""

import json
import shlex

import pytest

from kit.git import needs_git, repository
from kit.shell import blocks_of, printed, text_of

BLOCKS = blocks_of(text_of("docs/projects.md"))


@pytest.mark.slow
@needs_git
@pytest.mark.timeout(120)
def test_every_command_of_the_page_works(tmp_path):
    tmp_path.chmod(0o700)
    directory = shlex.quote(str(repository(tmp_path / "shop")))

    def run(line):
        return printed("/bin/sh", "-c", f"cd {directory} && {line}", home=tmp_path)

    run('muniment remember "This project keeps zebras" --scope project')
    ((project,),) = [json.loads(run("muniment projects list --json"))["projects"]]
    lines = [line for block in BLOCKS for line in block.splitlines() if line.startswith("$ ")]
    assert len(lines) == 8
    for line in lines[:-3]:
        run(line[2:].replace("PROJECT", project["id"]))
    run(" && ".join(line[2:] for line in lines[-3:]))
    listed = json.loads(run("muniment projects list --json"))["projects"]
    assert sorted((each["name"], str(each["inside"])) for each in listed) == [
        ("shop", ".muniment"),
        ("shop", "None"),
    ]
