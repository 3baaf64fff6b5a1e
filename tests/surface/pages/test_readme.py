"""The README, and the pages that teach: every block is run from top to bottom, each page in one home."""

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from kit.agent.served_minds import perfect, through
from kit.server.process import serving
from kit.shell import PROGRAMS, blocks_of, printed, run, text_of
from kit.where import REPOSITORY
from muniment.testing.chat_server import ChatServer

README = text_of("README.md")
PAGES = ("README.md", "docs/first-day.md", "docs/library.md", "docs/daemon.md")
INSTALL = "python3 -m venv .venv && .venv/bin/pip install -q . && "
SAID = {
    "README.md": ["saved (new): user/", "  The user prefers dark mode in all editors\n", "undone ("],
    "docs/first-day.md": ["updated: ", "Deploys now happen on Mondays", "nothing to remember", "forgotten: "],
    "docs/library.md": ["completed ('project/"],
    "docs/daemon.md": ['"status": "completed"', "code-review-takes-place-within-a-day.md"],
}
"""What somebody who does that has to see."""

SERVE = "muniment serve --port 8421"
MODEL = "http://127.0.0.1:8080/v1"
URL = "http://127.0.0.1:8421"
REQUIRED = re.search(r'requires-python = ">=(3\.\d+)"', text_of("pyproject.toml"))[1]


class Reader:
    """Somebody who follows the page: in a checkout, with a home of their own."""

    def __init__(self, base, model):
        self.model, self.daemon, self.url, self.asked = model, None, URL, ""
        self.work = base / "checkout"
        (self.work / ".git").mkdir(parents=True)
        (self.work / ".venv").mkdir()
        (self.work / ".venv" / "bin").symlink_to(PROGRAMS)
        self.environment = {"HOME": str(base)}

    def run(self, *command):
        return printed(*command, **{"home": self.work, **self.environment})

    def types(self, line):
        """What a line prints, of a shell that keeps what was assigned in it."""
        if line == SERVE:
            return self.serves()
        if name := re.match(r"([A-Z]+)=", line):
            self.environment[name[1]] = self.run("/bin/sh", "-c", f"{line}; printf %s ${name[1]}")
            return ""
        line = line.replace(MODEL, self.model).replace(URL, self.url)
        line = re.sub(r"(?<=remember/)remember-[0-9a-f-]+", lambda _: self.asked, line)
        if " setup " in line:
            line += " --yes"  # Nobody is at a terminal here.
        if "TASK" in line:
            line = line.replace(
                "TASK", json.loads(self.run("muniment", "history", "--json"))["steps"][0]["task"]
            )
        said = self.run("/bin/sh", "-c", line)
        if task := re.search(r'"taskId": "([^"]+)"', said):
            self.asked = task[1]
        return said

    def serves(self):
        """Another port than the page's, which may be taken here."""
        environment = {"PATH": f"{PROGRAMS}:/usr/bin:/bin", **self.environment}
        terms = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self.daemon = subprocess.Popen(
            [PROGRAMS / "muniment", "serve"], cwd=self.work, env=environment, **terms
        )
        self.url = self.daemon.stdout.readline().removeprefix("serving ").strip()
        return ""

    def leaves(self):
        if self.daemon is not None:
            self.daemon.terminate()
            self.daemon.communicate(timeout=60)


@pytest.fixture
def reader(tmp_path):
    tmp_path.chmod(0o700)
    with ChatServer(through(perfect)) as server:
        reader = Reader(tmp_path, server.base_url)
        try:
            yield reader
        finally:
            reader.leaves()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs_from_top_to_bottom_in_one_home(page, reader):
    said, text = [], text_of(page)
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for folder in re.findall(r"`(mkdir -p -m 700 [^`]+)`", text):
            reader.run("/bin/sh", "-c", folder)
        if kind == "console":
            typed = [line[2:].removeprefix(INSTALL) for line in block.splitlines() if line.startswith("$ ")]
            assert typed, block
            said += [reader.types(line) for line in typed]
        elif kind in {"python", "py"}:
            said.append(reader.run(sys.executable, "-c", block))
        else:
            assert not kind  # A drawing.
    for line in SAID[page]:
        assert line in "\n".join(said)


def test_an_old_python_is_told_which_one_is_needed_before_anything_is_made(tmp_path):
    line, told = README.splitlines()[2], f"Python {REQUIRED} or later"
    assert (told in line, "Linux" in line) == (True, True)
    source = REPOSITORY / "src"
    ast.parse((source / "muniment" / "__init__.py").read_text(), feature_version=(3, 7))
    release = "sys.version_info = (3, 9, 18, 'final', 0)"
    for name in ("__init__", "__main__"):
        code = f"import sys; {release}; sys.path[0] = {str(source)!r}; import muniment.{name}"
        done = run(sys.executable, "-c", code, home=tmp_path)
        assert done.returncode != 0
        assert done.stderr.endswith(f"\nImportError: muniment needs {told}, and this is Python 3.9\n")
    shutil.copy(REPOSITORY / "check", tmp_path)
    old, python = tmp_path / "python3.9", shlex.quote(sys.executable)
    old.write_text(f'#!/bin/sh\n[ "$1" = -c ] || exit 9\nexec {python} -c "import sys\n{release}\n$2"\n')
    old.chmod(0o700)
    done = run(tmp_path / "check", home=tmp_path, PATH="/usr/bin:/bin", PYTHON=str(old))
    assert (done.returncode, f"older than Python {REQUIRED};" in done.stderr) == (1, True)
    assert {each.name for each in tmp_path.iterdir()} == {"check", "python3.9"}


# As a daemon

DAEMON = text_of("docs/daemon.md")
_, ASKS = blocks_of(DAEMON)


@pytest.mark.slow
def test_curl_and_the_client_are_answered_as_shown(tmp_path):
    def answer(*lines):
        text = "\n".join(line.removeprefix("$ ") for line in lines)
        return json.loads(printed("/bin/sh", "-c", text, home=tmp_path))

    with serving(tmp_path) as daemon:
        script = ASKS.replace(URL, daemon.url).replace("~/.muniment", str(daemon.home))
        token, first, queued, second, completed = script.splitlines()
        queued, completed = json.loads(queued), json.loads(completed)
        accepted = answer(token, first)
        assert list(accepted) == list(queued)
        assert accepted["status"] in {"queued", "running"}
        over = answer(token, second.replace(queued["taskId"], accepted["taskId"]))
        assert list(over) == list(completed)
        changing = {name: over[name] for name in ("createdAt", "updatedAt")}
        completed |= {"taskId": accepted["taskId"], **changing}
        completed["result"]["enforcement"] = over["result"]["enforcement"]
        assert over == completed
        (snippet,) = blocks_of(DAEMON, "py")
        said = printed(sys.executable, "-c", snippet, home=daemon.work, MUNIMENT_HOME=str(daemon.home))
        assert said == "('project/team/code-review-takes-place-within-a-day.md',)\n"
