"""The TypeScript client of the original contract from npm, unchanged: `@qwen-code/sdk`.

It is not part of this repository, and no test downloads it. To run the tests that need it:

    npm pack @qwen-code/sdk@0.1.14
    tar --extract --file qwen-code-sdk-0.1.14.tgz
    MUNIMENT_QWEN_SDK=$PWD/package .venv/bin/pytest tests/surface/http/test_typescript.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "MUNIMENT_QWEN_SDK"
OLDEST_NODE = 20

_DRIVER = Path(__file__).with_suffix(".mjs")


class SdkError(Exception):
    """The error of a client call.

    Attributes:
        name, message, status, body: of the error; status and body if it is a response.
    """

    def __init__(self, thrown):
        self.name, self.message = thrown["name"], thrown["message"]
        self.status, self.body = thrown.get("status"), thrown.get("body")
        super().__init__(f"{self.name}: {self.message}")


class Sdk:
    """The client in a process of Node; its methods are called by name, see `typescript.mjs`."""

    def __init__(self, process):
        self._process = process

    def __getattr__(self, name):
        def call(*args):
            self._process.stdin.write(f"{json.dumps([name, *args])}\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            assert line, "the client ended"
            answer = json.loads(line)
            if "error" in answer:
                raise SdkError(answer["error"])
            return answer.get("result")

        return call


def missing():
    """Return why the client cannot run here, or None."""
    node, package = shutil.which("node"), os.environ.get(VARIABLE)
    if package is None:
        return f"{VARIABLE} is not set to an unpacked @qwen-code/sdk; see tests/kit/server/typescript.py"
    if node is None:
        return "node not found"
    told = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(told.removeprefix("v").partition(".")[0]) < OLDEST_NODE:
        return f"node is older than version {OLDEST_NODE}: {told.strip()}"
    return None


@contextmanager
def launched():
    """Start the client in a process of Node."""
    env = {"SDK": os.environ[VARIABLE], "PATH": os.environ["PATH"]}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(["node", _DRIVER], env=env, **pipes) as process:
        try:
            yield Sdk(process)
        finally:
            process.stdin.close()  # It ends with its input.
            process.wait(30)
