"""The README and the tutorials: every block runs from top to bottom, each page in one home."""

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from kit.agent.simulated_models import build_answerer, remember_fact
from kit.locations import REPOSITORY
from kit.server.process import start_daemon_process
from kit.shell import PROGRAMS, find_code_blocks, get_output, read_page, run_command
from muniment.testing.chat_server import ChatServer

README = read_page("README.md")
PAGES = ("README.md", "docs/first-day.md", "docs/library.md", "docs/daemon.md")
INSTALL = "python3 -m venv .venv && .venv/bin/pip install -q . && "
EXPECTED_OUTPUT = {
    "README.md": ["saved: ", "The user prefers dark mode in all editors\t", "undone: "],
    "docs/first-day.md": ["updated: ", "Deploys now happen on Mondays", "nothing to remember", "forgot: "],
    "docs/library.md": ["completed ('project/"],
    "docs/daemon.md": ['"status": "completed"', "code-review-takes-place.md"],
}
"""Output that a reader must see."""

SERVE = "muniment serve --port 8421"
MODEL = "http://127.0.0.1:8080/v1"
URL = "http://127.0.0.1:8421"
REQUIRED = re.search(r'requires-python = ">=(3\.\d+)"', read_page("pyproject.toml"))[1]


class Reader:
    """A reader who runs the page in a checkout, with a separate home."""

    def __init__(self, base, model):
        self.model, self.daemon, self.url, self.task_id = model, None, URL, ""
        self.work = base / "checkout"
        (self.work / ".git").mkdir(parents=True)
        (self.work / ".venv").mkdir()
        (self.work / ".venv" / "bin").symlink_to(PROGRAMS)
        self.environment = {"HOME": str(base)}

    def run(self, *command):
        return get_output(*command, **{"home": self.work, **self.environment})

    def run_line(self, line):
        """Run a line as a shell that keeps assigned variables, and return its output."""
        if line == SERVE:
            return self.start_daemon()
        if name := re.match(r"([A-Z]+)=", line):
            self.environment[name[1]] = self.run("/bin/sh", "-c", f"{line}; printf %s ${name[1]}")
            return ""
        line = line.replace(MODEL, self.model).replace(URL, self.url)
        line = re.sub(r"(?<=remember/)remember-[0-9a-f-]+", lambda _: self.task_id, line)
        if re.search(r"muniment (setup .*|undo|redo)$", line):
            line += " --yes"  # No terminal is available.
        if "TASK" in line:
            line = line.replace(
                "TASK", json.loads(self.run("muniment", "history", "--json"))["steps"][0]["task"]
            )
        output = self.run("/bin/sh", "-c", line)
        if task := re.search(r'"taskId": "([^"]+)"', output):
            self.task_id = task[1]
        return output

    def start_daemon(self):
        """Use another port than the page, whose port may be in use."""
        environment = {"PATH": f"{PROGRAMS}:/usr/bin:/bin", **self.environment}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self.daemon = subprocess.Popen(
            [PROGRAMS / "muniment", "serve"], cwd=self.work, env=environment, **options
        )
        self.url = self.daemon.stdout.readline().removeprefix("serving ").strip()
        return ""

    def stop(self):
        if self.daemon is not None:
            self.daemon.terminate()
            self.daemon.communicate(timeout=60)


@pytest.fixture
def reader(tmp_path):
    tmp_path.chmod(0o700)
    with ChatServer(build_answerer(remember_fact)) as server:
        reader = Reader(tmp_path, server.base_url)
        try:
            yield reader
        finally:
            reader.stop()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_page_runs_in_order(page, reader):
    outputs, text = [], read_page(page)
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for folder in re.findall(r"`(mkdir -p -m 700 [^`]+)`", text):
            reader.run("/bin/sh", "-c", folder)
        if kind == "console":
            lines = [line[2:].removeprefix(INSTALL) for line in block.splitlines() if line.startswith("$ ")]
            assert lines, block
            outputs += [reader.run_line(line) for line in lines]
        elif kind in {"python", "py"}:
            outputs.append(reader.run(sys.executable, "-c", block))
        else:
            assert kind in {"", "text"}  # A drawing, or some output.
    for line in EXPECTED_OUTPUT[page]:
        assert line in "\n".join(outputs)


def test_old_python_is_rejected_before_anything_is_created(tmp_path):
    line, requirement = README.splitlines()[2], f"Python {REQUIRED} or later"
    assert (requirement in line, "Linux" in line) == (True, True)
    source = REPOSITORY / "src"
    ast.parse((source / "muniment" / "__init__.py").read_text(), feature_version=(3, 7))
    release = "sys.version_info = (3, 9, 18, 'final', 0)"
    for name in ("__init__", "__main__"):
        code = f"import sys; {release}; sys.path[0] = {str(source)!r}; import muniment.{name}"
        done = run_command(sys.executable, "-c", code, home=tmp_path)
        assert done.returncode != 0
        assert done.stderr.endswith(f"\nImportError: muniment needs {requirement}, and this is Python 3.9\n")
    shutil.copy(REPOSITORY / "check", tmp_path)
    old, python = tmp_path / "python3.9", shlex.quote(sys.executable)
    old.write_text(f'#!/bin/sh\n[ "$1" = -c ] || exit 9\nexec {python} -c "import sys\n{release}\n$2"\n')
    old.chmod(0o700)
    done = run_command(tmp_path / "check", home=tmp_path, PATH="/usr/bin:/bin", PYTHON=str(old))
    assert (done.returncode, f"needs Python {REQUIRED} or later" in done.stderr) == (1, True)
    assert {each.name for each in tmp_path.iterdir()} == {"check", "python3.9"}


# -- the page about the daemon

DAEMON = read_page("docs/daemon.md")
_, CURL_BLOCK = find_code_blocks(DAEMON)


@pytest.mark.slow
def test_curl_and_client_get_documented_answers(tmp_path):
    def answer(*lines):
        text = "\n".join(line.removeprefix("$ ") for line in lines)
        return json.loads(get_output("/bin/sh", "-c", text, home=tmp_path))

    with start_daemon_process(tmp_path) as daemon:
        script = CURL_BLOCK.replace(URL, daemon.url).replace("~/.muniment", str(daemon.home))
        token, first, queued, second, completed = script.splitlines()
        queued, completed = json.loads(queued), json.loads(completed)
        accepted = answer(token, first)
        assert list(accepted) == list(queued)
        assert accepted["status"] in {"queued", "running"}
        finished = answer(token, second.replace(queued["taskId"], accepted["taskId"]))
        assert list(finished) == list(completed)
        changing = {name: finished[name] for name in ("createdAt", "updatedAt")}
        completed |= {"taskId": accepted["taskId"], **changing}
        completed["result"]["enforcement"] = finished["result"]["enforcement"]
        assert finished == completed
        (snippet,) = find_code_blocks(DAEMON, "py")
        output = get_output(sys.executable, "-c", snippet, home=daemon.work, MUNIMENT_HOME=str(daemon.home))
        assert output == "('project/team/code-review-takes-place.md',)\n"
