"""Show what reaches the model: run real coding tools with Muniment against a scripted model server.

    python benchmarks/coding_tools.py DIRECTORY [--tool NAME] [--transcripts DIR] [--screens]

DIRECTORY is a directory in which the tools are installed, for example with

    npm install @anthropic-ai/claude-code @openai/codex @qwen-code/qwen-code @google/gemini-cli node@22

Each tool gets an empty home, `muniment setup`, and a memory with eight standing facts and three other facts.
Then it runs a few short sessions. The table shows, for the first request to the model in each step: how many
of the eight standing facts it contains, how many of all facts it contains more than once, and whether it
contains the fact that the prompt asks for. A dash means that the prompt asks for none. Tools that are
missing, and steps that a tool cannot do, are listed.

With --screens, the tools also run in a terminal (tmux), so that prompts and a compaction share one process.
With --transcripts, each request, each event of the hook with its answer, and each screen is written to DIR.

The answers of the server contain no fact, only the number of facts in the request.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from model_server import Answer, ModelServer, Request, ToolCall
from tool_drivers import SECONDS, TOOLS, Tool, ToolFailed

sys.path[:0] = [str(Path(__file__).parent.parent / "tests")]

from kit.recall.standing_facts import STANDING_FACTS  # noqa: E402

OTHERS = (
    "The staging database listens on port 5433",
    "The invoice service is deployed from the Lisbon cluster",
    "The weekly report is due on Thursday at noon",
)
"""Facts that only some prompts need."""

FACTS = STANDING_FACTS + OTHERS

QUESTIONS = {
    "Tell me which port the staging database uses.": OTHERS[0],
    "Name the cluster from which the invoice service is deployed.": OTHERS[1],
}
"""The fact that each question of a step needs. Gemini CLI shows its help for a question mark."""

FIRST = "Hello, please answer with one word."
SECOND, THIRD = QUESTIONS
AGAIN = f"Once more. {SECOND}"
DELEGATE = "Let a helper list the files."
TASK = "List the files of this directory."
FILLER = " ".join(f"word{number}" for number in range(1_500))
"""Text without meaning: the tools do not compact a short conversation."""

SUMMARY = "<summary>The user said hello.</summary>\n<state_snapshot>The user said hello.</state_snapshot>"
NO_SUMMARY = "the tool sent no request for a summary"
SCREEN = ("140", "45")


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        step: the name of the step.
        standing: the number of standing facts in the request.
        repeated: the number of facts, standing or other, that the request contains more than once.
        recalled: whether the request contains the fact that the prompt asks for; None: it asks for none.
        note: the reason why the step has no request; empty: it has one.
    """

    step: str
    standing: int = 0
    repeated: int = 0
    recalled: bool | None = None
    note: str = ""

    def format(self, tool: str, version: str) -> str:
        """Return the row as a line of the table."""
        head = f"{tool:12} {version:9} {self.step:30}"
        if self.note:
            return f"{head} skipped: {self.note}"
        recalled = {None: "-", True: "yes", False: "no"}[self.recalled]
        return f"{head} {self.standing:>2}/{len(STANDING_FACTS)} {self.repeated:>9} {recalled:>7}"


def count_facts(request: Request) -> list[int]:
    """Return how often the request contains each fact, the standing facts first.

    The hook shows a short fact as the title of its entry and as its text; this counts as one.
    """
    text = _normalize("\n".join(each.text for each in request.messages))
    facts = [_normalize(each) for each in FACTS]
    return [text.replace(f"{fact} {fact}", fact).count(fact) for fact in facts]


def _normalize(text: str) -> str:
    return " ".join(text.lower().split())


class Session:
    """One tool in a new home, with a server and a memory; use it as a context manager."""

    def __init__(self, tool: Tool, programs: Path, base: Path, transcripts: Path | None) -> None:
        """Create the home, the workspace and the environment; nothing is started."""
        self.tool, self.base, self.transcripts = tool, base, transcripts
        self.home, self.workspace = base / "home", base / "work"
        self.log = base / "events.jsonl"
        self.command = [str(programs / tool.program)]
        requests = transcripts / "requests" if transcripts else None
        self.server = ModelServer(self._answer, requests, tool.usage_tokens)
        self.environment = {
            "HOME": str(self.home),
            "MUNIMENT_HOME": str(base / "memory"),
            "PATH": f"{programs}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
        }

    def __enter__(self) -> Self:
        """Start the server, set up Muniment and fill the memory."""
        for each in (self.home, self.workspace):
            each.mkdir()
        subprocess.run(["git", "init", "-q"], cwd=self.workspace, check=True)
        self.server.__enter__()
        self.environment |= self.tool.prepare(self.home, self.workspace, self.server.url)
        program = self._write_program()
        for fact in FACTS:
            self._run([str(program), "remember", fact])
        self._run([str(program), "setup", self.tool.name, "--yes"])
        self.tool.trust_hooks(self.command, self.workspace, self.environment)
        return self

    def __exit__(self, *error: object) -> None:
        """Stop the server and keep the log of the hook."""
        self.server.__exit__(*error)
        if self.transcripts and self.log.exists():
            shutil.copy(self.log, self.transcripts / "events.jsonl")

    def run_steps(self) -> Iterator[Row]:
        """Run one prompt per process, and yield a row for each."""
        tool = self.tool
        yield self._run_step("new session", tool.start(f"{FIRST} {FILLER}"), FIRST)
        yield self._run_step("resumed", tool.resume(f"{SECOND} {FILLER}"), SECOND)
        yield self._run_step("resumed, same question", tool.resume(AGAIN), AGAIN)
        arguments = tool.resume_after_compaction(THIRD)
        if arguments is None:
            yield Row("after compaction", note="needs a terminal (--screens)")
        else:
            start = len(self.server.requests)
            compact = tool.compact()
            if compact is not None:
                self._run([*self.command, *compact])
            row = self._run_step("after compaction", arguments, THIRD)
            yield row if self._has_compacted(start) else Row(row.step, note=NO_SUMMARY)
        yield self._run_step("subagent", tool.start(DELEGATE), TASK)

    def run_in_terminal(self) -> Iterator[Row]:
        """Run the prompts and a compaction in one process with a terminal, and yield a row for each."""
        steps = (("first prompt", FIRST), ("second prompt", SECOND), ("same question", AGAIN))
        with Terminal(self) as terminal:
            for step, prompt in steps:
                yield self._type_step(terminal, f"terminal: {step}", prompt)
            start = len(self.server.requests)
            terminal.type(self.tool.compact_command)
            self._wait(lambda: self._has_compacted(start))
            terminal.settle()
            terminal.capture("terminal: compaction")
            row = self._type_step(terminal, "terminal: after compaction", THIRD)
            yield row if self._has_compacted(start) else Row(row.step, note=NO_SUMMARY)

    def _run_step(self, step: str, arguments: list[str], prompt: str) -> Row:
        start = len(self.server.requests)
        self._run([*self.command, *arguments])
        return self._create_row(step, prompt, start)

    def _type_step(self, terminal: Terminal, step: str, prompt: str) -> Row:
        start = len(self.server.requests)
        terminal.type(prompt)
        self._wait(lambda: self._find_request(prompt, start) is not None)
        terminal.settle()
        terminal.capture(step)
        return self._create_row(step, prompt, start)

    def _wait(self, is_done: Callable[[], bool]) -> None:
        """Wait until a condition is true, or too much time has passed; the caller checks which."""
        end = time.monotonic() + SECONDS / 4
        while not is_done() and time.monotonic() < end:
            time.sleep(0.1)

    def _has_compacted(self, start: int) -> bool:
        return any(each.is_compaction for each in self.server.requests[start:])

    def _create_row(self, step: str, prompt: str, start: int) -> Row:
        request = self._find_request(prompt, start)
        if request is None:
            return Row(step, note="no request contains the prompt")
        counts = count_facts(request)
        wanted = next((fact for question, fact in QUESTIONS.items() if question in prompt), None)
        return Row(
            step,
            sum(each > 0 for each in counts[: len(STANDING_FACTS)]),
            sum(each > 1 for each in counts),
            None if wanted is None else counts[FACTS.index(wanted)] > 0,
        )

    def _find_request(self, prompt: str, start: int) -> Request | None:
        """Return the first request with a prompt that offers tools, among those from number `start` on."""
        for each in self.server.requests[start:]:
            if each.tools and not each.is_compaction:
                users = [message.text for message in each.messages if message.role == "user"]
                if any(prompt in text for text in users):
                    return each
        return None

    def _answer(self, request: Request) -> Answer:
        """Answer with a summary, a call that starts or ends a subagent, or the number of facts."""
        if request.is_compaction:
            return Answer(SUMMARY)
        messages = request.messages
        delegated = [index for index, each in enumerate(messages) if DELEGATE in each.text]
        if delegated:
            following = messages[delegated[-1] :]
            is_first = not any(each.role in {"tool", "assistant"} for each in following)
            call = (
                self.tool.call_subagent(request.tools, TASK)
                if is_first
                else self.tool.continue_subagent(request.tools, messages[-1].text)
            )
            if call is not None:
                return Answer("", call)
        if "complete_task" in request.tools:
            return Answer("", _call_complete_task(request))
        found = [each > 0 for each in count_facts(request)]
        standing, others = sum(found[: len(STANDING_FACTS)]), sum(found[len(STANDING_FACTS) :])
        return Answer(
            f"My request has {standing} of {len(STANDING_FACTS)} standing facts"
            f" and {others} of {len(OTHERS)} others."
        )

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            command,
            cwd=self.workspace,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise ToolFailed(f"{' '.join(command)[:200]}\n{(done.stdout + done.stderr)[-2_000:]}")

    def _write_program(self) -> Path:
        """Write a program `muniment` that logs the events of the hook and its answers."""
        path = self.base / "bin" / "muniment"
        path.parent.mkdir()
        path.write_text(
            f"#!{sys.executable}\n"
            "import json, subprocess, sys, time\n"
            "if sys.argv[1:3] != ['recall', '--hook']:\n"
            "    from muniment.cli.entry import main\n"
            "    sys.exit(main())\n"
            "event, start = sys.stdin.buffer.read(), time.monotonic()\n"
            "done = subprocess.run([sys.executable, '-m', 'muniment', *sys.argv[1:]], input=event,\n"
            "                      capture_output=True)\n"
            "entry = {'event': json.loads(event), 'answer': done.stdout.decode(), \n"
            "         'error': done.stderr.decode(), 'seconds': round(time.monotonic() - start, 3)}\n"
            f"with open({str(self.log)!r}, 'a') as log:\n"
            "    log.write(json.dumps(entry) + '\\n')\n"
            "sys.stdout.buffer.write(done.stdout)\n"
            "sys.exit(done.returncode)\n"
        )
        path.chmod(0o700)
        return path


def _call_complete_task(request: Request) -> ToolCall:
    """Return the call with which a subagent of Gemini CLI ends."""
    schema = next(
        each.get("parametersJsonSchema") or each.get("parameters") or {}
        for group in request.body["tools"]
        for each in group["functionDeclarations"]
        if each["name"] == "complete_task"
    )
    return ToolCall("complete_task", dict.fromkeys(schema.get("required", ["result"]), "done"))


class Terminal:
    """A tool in a terminal (tmux); use it as a context manager."""

    def __init__(self, session: Session) -> None:
        """Choose a socket; nothing is started."""
        self.session = session
        self.socket = str(session.base / "tmux")

    def __enter__(self) -> Self:
        """Start the tool and wait until its screen no longer changes."""
        variables = [f"{name}={value}" for name, value in self.session.environment.items()]
        size = ("-x", SCREEN[0], "-y", SCREEN[1])
        program = ("env", "-i", *variables, *self.session.command)
        self._tmux("new-session", "-d", "-s", "tool", *size, "-c", str(self.session.workspace), *program)
        self.settle(seconds=3.0)
        self.capture("terminal: start")
        return self

    def __exit__(self, *_: object) -> None:
        """End the tool and its children: some tools continue when their terminal ends."""
        group = self._tmux("display-message", "-p", "-t", "tool", "#{pane_pid}", check=False).strip()
        self._tmux("kill-server", check=False)
        if group:
            with suppress(ProcessLookupError):
                os.killpg(int(group), signal.SIGKILL)

    def type(self, text: str) -> None:
        """Type a line and press enter."""
        self._tmux("send-keys", "-t", "tool", "-l", text)
        self.settle(seconds=0.7)
        self._tmux("send-keys", "-t", "tool", "Enter")

    def settle(self, seconds: float = 1.5) -> None:
        """Wait until the screen has not changed for some time."""
        end, shown, since = time.monotonic() + SECONDS / 4, "", time.monotonic()
        while time.monotonic() < min(end, since + seconds):
            screen = self._read()
            if screen != shown:
                shown, since = screen, time.monotonic()
            time.sleep(0.1)

    def capture(self, name: str) -> None:
        """Write the screen to the transcripts."""
        if self.session.transcripts:
            file = "-".join(re.findall(r"\w+", name)) + ".txt"
            directory = self.session.transcripts / "screens"
            directory.mkdir(parents=True, exist_ok=True)
            (directory / file).write_text(self._read())

    def _read(self) -> str:
        return self._tmux("capture-pane", "-t", "tool", "-p", check=False)

    def _tmux(self, *arguments: str, check: bool = True) -> str:
        command = ["tmux", "-S", self.socket, "-f", "/dev/null", *arguments]
        return subprocess.run(command, check=check, capture_output=True, text=True).stdout


def read_version(modules: Path, tool: Tool) -> str | None:
    """Return the installed version of a tool, or None if it is missing."""
    try:
        return str(json.loads((modules / tool.package / "package.json").read_text())["version"])
    except OSError:
        return None


def measure(tool: Tool, programs: Path, arguments: argparse.Namespace, version: str) -> None:
    """Run one tool and print its rows."""
    transcripts = arguments.transcripts and Path(arguments.transcripts).absolute() / tool.name
    modes = [Session.run_steps] + ([Session.run_in_terminal] if arguments.screens else [])
    for mode in modes:
        with TemporaryDirectory(prefix="tools-") as base:
            directory = transcripts and transcripts / mode.__name__
            if directory:
                shutil.rmtree(directory, ignore_errors=True)
                directory.mkdir(parents=True)
            try:
                with Session(tool, programs, Path(base).resolve(), directory) as session:
                    for row in mode(session):
                        print(row.format(tool.name, version), flush=True)
            except (ToolFailed, subprocess.SubprocessError) as error:
                print(f"{tool.name:12} {version:9} failed: {error}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="where the tools are installed")
    parser.add_argument("--tool", action="append", help="only this tool; may be repeated")
    parser.add_argument("--transcripts", help="directory for requests, events and screens")
    parser.add_argument("--screens", action="store_true", help="also run the tools in a terminal")
    arguments = parser.parse_args()
    modules = arguments.directory.absolute() / "node_modules"
    if arguments.screens and shutil.which("tmux") is None:
        parser.error("--screens needs tmux; install it")
    print(f"{'tool':12} {'version':9} {'step':30} standing repeated recalled")
    for tool in TOOLS:
        if arguments.tool and tool.name not in arguments.tool:
            continue
        version = read_version(modules, tool)
        if version is None:
            print(f"{tool.name:12} skipped: {tool.package} is not installed in {arguments.directory}")
        else:
            measure(tool, modules / ".bin", arguments, version)


if __name__ == "__main__":
    main()
