"""Adapters for the corpus: Muniment's `Sandbox`, with and without a worker, and any program with JSON lines.

Only this module of the package depends on Muniment. For another tool, write a similar module.
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
from muniment.testing.corpus.stage import ROOTS, CallResult, Case, CommitOutcome, Stage

# -- json lines --------------------------------------------------------------------------------------
#
# Any program that uses the JSON lines of `muniment tool`, as a subject. A line `{"tool": …, "args": {…}}` on
# its standard input is one call. It responds to each call with a line `{"verdict": …, "code": …, "text": …}`.
# The end of its input is its commit. It is started for every case, in the directory `outside` of the case,
# which is also its HOME.

RESPONSE_KEYS: Final = {"verdict", "code", "text"}


class JsonLinesSubject:
    """The adapter for a program that uses JSON lines, over the roots of a stage.

    Args:
        stage: provides the working directory and the file for standard error.
        command: the command that starts the program, without placeholders.
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

    def call(self, tool: str, arguments: Any) -> CallResult:
        """Send one call as a line, and return the response of the program.

        Raises:
            ValueError: invalid response.
            OSError: the program has ended.
        """
        requests, responses = self._process.stdin, self._process.stdout
        assert requests is not None and responses is not None  # noqa: S101, PT018 - for the type checker
        requests.write(json.dumps({"tool": tool, "args": arguments}) + "\n")
        requests.flush()
        line = responses.readline()
        if not line:
            raise BrokenPipeError(f"the program ended without a response: {self._read_log()}")
        response = json.loads(line)
        if (
            not isinstance(response, dict)
            or set(response) != RESPONSE_KEYS
            or not isinstance(response["text"], str)
        ):
            raise ValueError(f"invalid response {line[:200]!r}: expected verdict, code and text")
        return CallResult(response["verdict"], response["code"], response["text"], line)

    def commit(self) -> CommitOutcome:
        """Close the input of the program, wait for its end, and return the result of its commit.

        If the commit failed, the last line of standard error ends with the code in brackets.
        """
        output, _ = self._process.communicate()
        if self._process.returncode == 0:
            return CommitOutcome(None, output)
        error = self._log.read_text(errors="replace")
        code = re.search(r"\[([a-z_]+)\]\s*\Z", error)
        return CommitOutcome(code[1] if code else f"exit {self._process.returncode}", output + error)

    def close(self) -> str:
        """Kill the program if it still runs, and return its output on standard error."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
        return self._read_log()

    def _read_log(self) -> str:
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
    """Write the policy that a case requires to a file of the stage, and return the path of the file.

    Args:
        stage: the stage of the case.
        case: the case, whose `policy` selects a variant.
        require: the minimum confinement.
        on_escape: the reaction to an escape.
    """
    variant = case.get("policy", {})
    writable = [f"/{scope}/**/*.md" for scope in ROOTS if scope not in variant.get("readonly", ())]
    stage.policy.write_text(
        _POLICY.format(
            writable=json.dumps(writable),
            hidden="" if variant.get("dotfiles") == "allow" else _HIDDEN,
            require=require,
            on_escape=on_escape,
            limits=_format_settings(_LIMITS | variant.get("limits", {})),
            quota=_format_settings(_QUOTA | variant.get("quota", {})),
        )
    )
    return stage.policy


class SandboxSubject:
    """The adapter for a `Sandbox` over the roots of a stage."""

    commits_often = True

    def __init__(self, stage: Stage, case: Case, *, in_process: bool, on_escape: str = "refuse") -> None:
        policy = write_policy(stage, case, require="none" if in_process else "partial", on_escape=on_escape)
        roots = {scope: stage.get_scope_path(scope) for scope in ROOTS}
        self._log = stage.log
        self.sandbox = Sandbox(
            str(policy), roots, symlinks=choose_symlinks(case), state=stage.state, in_process=in_process
        )
        self.call("ls", {"path": ""})  # A response shows that its roots are open and the worker runs.

    def call(self, tool: str, arguments: Any) -> CallResult:
        """Call a tool of the sandbox."""
        outcome = self.sandbox.call(tool, arguments)
        return CallResult(outcome.verdict, outcome.code, outcome.text, outcome)

    def commit(self) -> CommitOutcome:
        """Commit the change set of the sandbox."""
        output: list[object] = []
        try:
            output.append(self.sandbox.changes())
            output.append(self.sandbox.commit())
        except MunimentError as error:
            return CommitOutcome(error.code, (*output, error))
        return CommitOutcome(None, output)

    def close(self) -> str:
        """Stop the worker; return the output on this process's standard streams, if a driver recorded it."""
        self.sandbox.close()
        sys.stdout.flush()
        sys.stderr.flush()
        return self._log.read_text(errors="replace") if self._log.exists() else ""


def choose_symlinks(case: Case) -> str:
    """Return the value of `--symlinks` that a case requires."""
    return "beneath" if case.get("policy", {}).get("symlinks") == "follow" else "refuse"


def _format_settings(values: Mapping[str, int]) -> str:
    return "\n".join(f"{name} = {value}" for name, value in values.items())
