"""Subjects of the corpus: Muniment's `Sandbox`, with and without a worker, and any program with JSON lines.

Only this module depends on Muniment. For another tool, write a similar one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from muniment.errors import MunimentError
from muniment.sandbox.sandbox import Sandbox
from muniment.testing.corpus.stage import ROOTS, Answer, Case, Committed, Stage

# -- json lines --------------------------------------------------------------------------------------
#
# Any program that uses the JSON lines of `muniment tool`, as a subject. A line `{"tool": …, "args": {…}}` on
# its standard input is one call. It responds to each with a line `{"verdict": …, "code": …, "text": …}`. The
# end of its input is its commit. It is started for every case, in the case's `outside`, with that as HOME.

ANSWER: Final = {"verdict", "code", "text"}


class JsonLinesSubject:
    """A program over the roots of a stage.

    Args:
        stage: provides the file for its standard error and its directory.
        command: the command to start, without placeholders.
    """

    commits_often = False

    def __init__(self, stage: Stage, command: Sequence[str]) -> None:
        self._log = stage.log
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the caller's own command
                command,
                cwd=stage.outside,
                env={**os.environ, "HOME": str(stage.outside)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
            )
        try:
            self.call("ls", {"path": ""})  # A response shows that its roots are open.
        except BaseException:
            self.close()
            raise

    def call(self, tool: str, arguments: Any) -> Answer:
        """Send one line and read its response.

        Raises:
            ValueError: invalid response.
            OSError: the program has ended.
        """
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None and answers is not None  # noqa: S101, PT018 - for the type checker
        requests.write(json.dumps({"tool": tool, "args": arguments}) + "\n")
        requests.flush()
        line = answers.readline()
        if not line:
            raise BrokenPipeError(f"the program ended without a response: {self._said()}")
        answer = json.loads(line)
        if not isinstance(answer, dict) or set(answer) != ANSWER or not isinstance(answer["text"], str):
            raise ValueError(f"invalid response {line[:200]!r}: expected verdict, code and text")
        return Answer(answer["verdict"], answer["code"], answer["text"], line)

    def commit(self) -> Committed:
        """Close the input and return the result of the process; its log ends with the code in brackets."""
        said, _ = self._process.communicate()
        if self._process.returncode == 0:
            return Committed(None, said)
        error = self._log.read_text(errors="replace")
        code = re.search(r"\[([a-z_]+)\]\s*\Z", error)
        return Committed(code[1] if code else f"exit {self._process.returncode}", said + error)

    def close(self) -> str:
        """Kill the process if it still runs; return its output on standard error."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
        return self._said()

    def _said(self) -> str:
        return self._log.read_text(errors="replace")


# -- subjects ----------------------------------------------------------------------------------------

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
{limits}

[[quota]]
id = "all"
paths = ["/**"]
{quota}

[content]
reject = []
"""

_HIDDEN: Final = """
[[deny]]
id = "hidden"
verbs = ["*"]
paths = [".*"]
"""

_LIMITS: Final = {
    "tool_calls": 1_000_000,
    "read_bytes": 1 << 32,
    "scan_bytes": 1 << 32,
    "write_bytes": 1 << 32,
    "files_written": 100_000,
}
_QUOTA: Final = {"max_file_bytes": 1 << 32, "max_files": 1_000_000, "max_total_bytes": 1 << 32}


def write_policy(stage: Stage, case: Case, *, require: str, on_escape: str = "refuse") -> Path:
    """Write the policy of the corpus, in the variant of the case, to a file of the stage."""
    variant = case.get("policy", {})
    writable = [f"/{scope}/**/*.md" for scope in ROOTS if scope not in variant.get("readonly", ())]
    stage.policy.write_text(
        _POLICY.format(
            writable=json.dumps(writable),
            hidden="" if variant.get("dotfiles") == "allow" else _HIDDEN,
            require=require,
            on_escape=on_escape,
            limits=_settings(_LIMITS | variant.get("limits", {})),
            quota=_settings(_QUOTA | variant.get("quota", {})),
        )
    )
    return stage.policy


class SandboxSubject:
    """A `Sandbox` over the roots of a stage."""

    commits_often = True

    def __init__(self, stage: Stage, case: Case, *, in_process: bool, on_escape: str = "refuse") -> None:
        policy = write_policy(stage, case, require="none" if in_process else "partial", on_escape=on_escape)
        roots = {scope: stage.scope(scope) for scope in ROOTS}
        self._log = stage.log
        self.box = Sandbox(
            str(policy), roots, symlinks=symlinks(case), state=stage.state, in_process=in_process
        )
        self.call("ls", {"path": ""})  # A response shows that its roots are open and the worker runs.

    def call(self, tool: str, arguments: Any) -> Answer:
        """Make one call."""
        outcome = self.box.call(tool, arguments)
        return Answer(outcome.verdict, outcome.code, outcome.text, outcome)

    def commit(self) -> Committed:
        """Fetch the change set and commit it."""
        said: list[object] = []
        try:
            said.append(self.box.changes())
            said.append(self.box.commit())
        except MunimentError as error:
            return Committed(error.code, (*said, error))
        return Committed(None, said)

    def close(self) -> str:
        """Stop the worker; return the output of this process on its standard streams."""
        self.box.close()
        sys.stdout.flush()
        sys.stderr.flush()
        return self._log.read_text(errors="replace") if self._log.exists() else ""


def symlinks(case: Case) -> str:
    """Return the value of `--symlinks` for a case."""
    return "beneath" if case.get("policy", {}).get("symlinks") == "follow" else "refuse"


def _settings(values: Mapping[str, int]) -> str:
    return "\n".join(f"{name} = {value}" for name, value in values.items())
