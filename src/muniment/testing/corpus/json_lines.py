"""Any program that speaks the JSON lines of `muniment tool`, as a subject.

A line `{"tool": …, "args": {…}}` on its standard input is one call; it answers each with a line
`{"verdict": …, "code": …, "text": …}`. The end of its input is its commit. It is started anew for every case,
in the case's `outside`, with that as HOME.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from typing import Any, Final

from muniment.testing.corpus.stage import Stage
from muniment.testing.corpus.subject import Answer, Committed

ANSWER: Final = {"verdict", "code", "text"}


class JsonLinesSubject:
    """A program over the roots of a stage.

    Args:
        stage: where its standard error goes, and where it starts.
        command: what to start, with everything filled in.
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
            self.call("ls", {"path": ""})  # Whoever answers this holds its roots.
        except BaseException:
            self.close()
            raise

    def call(self, tool: str, arguments: Any) -> Answer:
        """Send one line and read its answer.

        Raises:
            ValueError: what came is no answer.
            OSError: it has ended.
        """
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None and answers is not None  # noqa: S101, PT018 - for the type checker
        requests.write(json.dumps({"tool": tool, "args": arguments}) + "\n")
        requests.flush()
        line = answers.readline()
        if not line:
            raise BrokenPipeError(f"it ended without an answer: {self._said()}")
        answer = json.loads(line)
        if not isinstance(answer, dict) or set(answer) != ANSWER or not isinstance(answer["text"], str):
            raise ValueError(f"an answer has verdict, code and text, not {line[:200]!r}")
        return Answer(answer["verdict"], answer["code"], answer["text"], line)

    def commit(self) -> Committed:
        """End the input and see how the process ends: the code is in brackets at the end of its log."""
        said, _ = self._process.communicate()
        if self._process.returncode == 0:
            return Committed(None, said)
        error = self._log.read_text(errors="replace")
        code = re.search(r"\[([a-z_]+)\]\s*\Z", error)
        return Committed(code[1] if code else f"exit {self._process.returncode}", said + error)

    def close(self) -> str:
        """End the process if it still runs; what it wrote on standard error."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
        return self._said()

    def _said(self) -> str:
        return self._log.read_text(errors="replace")
