"""What the corpus is run against: `Sandbox`, with and without a worker, and `muniment tool --commit`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, Literal

from corpus.interpreter import Answer, Case, Committed
from corpus.photograph import ROOTS
from corpus.stage import Stage
from muniment import Sandbox
from muniment.errors import MunimentError

Mode = Literal["worker", "in-process", "tool"]

_POLICY: Final = """
schema = "muniment-policy/1"
name = "corpus"

[scopes]
user = {{ trust = "owner" }}
project = {{ trust = "workspace" }}

[[allow]]
id = "see"
verbs = ["list", "read"]
paths = ["/user/**/*.md", "/project/**/*.md"]

[[allow]]
id = "write"
verbs = ["create", "modify"]
paths = {writable}
{hidden}
[[deny]]
id = "index"
verbs = ["create", "modify", "delete"]
paths = ["MEMORY.md"]

[confinement]
require = "{require}"
on_escape = "{on_escape}"

[limits]
tool_calls = 1_000_000
read_bytes = 4_294_967_296
scan_bytes = 4_294_967_296
write_bytes = 4_294_967_296
files_written = 100_000

[[quota]]
id = "all"
paths = ["/**"]
max_file_bytes = 4_294_967_296
max_files = 1_000_000
max_total_bytes = 4_294_967_296

[content]
reject = []
"""

_HIDDEN: Final = """
[[deny]]
id = "hidden"
verbs = ["*"]
paths = [".*"]
"""


def write_policy(stage: Stage, case: Case, *, require: str, on_escape: str = "refuse") -> Path:
    """The policy of the corpus, with the variant that the case asks for, as a file of its stage."""
    variant = case.get("policy", {})
    writable = [f"/{scope}/**/*.md" for scope in ROOTS if scope not in variant.get("readonly", ())]
    hidden = "" if variant.get("dotfiles") == "allow" else _HIDDEN
    stage.policy.write_text(
        _POLICY.format(writable=json.dumps(writable), hidden=hidden, require=require, on_escape=on_escape)
    )
    return stage.policy


class SandboxSubject:
    """A `Sandbox` over the roots of a stage."""

    commits_often = True

    def __init__(self, stage: Stage, case: Case, *, in_process: bool, on_escape: str = "refuse") -> None:
        policy = write_policy(stage, case, require="none" if in_process else "partial", on_escape=on_escape)
        roots = {scope: stage.scope(scope) for scope in ROOTS}
        self._log = stage.log
        self.box = Sandbox(str(policy), roots, state=stage.state, in_process=in_process)

    def call(self, tool: str, arguments: Any) -> Answer:
        """Make one call."""
        outcome = self.box.call(tool, arguments)
        return Answer(outcome.verdict, outcome.code, outcome.text, repr(outcome))

    def commit(self) -> Committed:
        """Fetch the change-set and commit it."""
        said = ""
        try:
            said = repr(self.box.changes())
            return Committed(None, f"{said} {self.box.commit()!r}")
        except MunimentError as error:
            return Committed(error.code, f"{said} {error!r}")

    def close(self) -> str:
        """End the worker; what this process wrote on its standard streams."""
        self.box.close()
        sys.stdout.flush()
        sys.stderr.flush()
        return self._log.read_text(errors="replace") if self._log.exists() else ""


class ToolSubject:
    """`muniment tool --commit` as a process of its own. Its commit is the end of its input."""

    commits_often = False

    def __init__(self, stage: Stage, case: Case) -> None:
        policy = write_policy(stage, case, require="partial")
        roots = [f"--root={scope}={stage.scope(scope)}" for scope in ROOTS]
        command = [Path(sys.executable).with_name("muniment"), "tool", "--policy", policy, *roots]
        self._log = stage.log
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--state", stage.state, "--commit"],
                cwd=stage.outside,
                env={**os.environ, "HOME": str(stage.outside)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
            )
        self.call("ls", {"path": ""})  # Whoever answers this holds its roots.

    def call(self, tool: str, arguments: Any) -> Answer:
        """Send one line and read its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"tool": tool, "args": arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer = json.loads(line)
        assert set(answer) == {"verdict", "code", "text"}
        return Answer(answer["verdict"], answer["code"], answer["text"], line)

    def commit(self) -> Committed:
        """End the input and see how the process ends."""
        said, _ = self._process.communicate()
        if self._process.returncode == 0:
            return Committed(None, said)
        error = self._log.read_text(errors="replace")
        code = re.search(r"\[([a-z_]+)\]\s*\Z", error)
        assert code is not None, f"exit {self._process.returncode}: {error}"
        return Committed(code[1], said + error)

    def close(self) -> str:
        """End the process if it still runs; what it wrote on standard error."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
        return self._log.read_text(errors="replace")


def open_subject(mode: Mode, stage: Stage, case: Case) -> SandboxSubject | ToolSubject:
    """The subject of a mode over a stage."""
    if mode == "tool":
        return ToolSubject(stage, case)
    return SandboxSubject(stage, case, in_process=mode == "in-process")
