"""Nodes as separate processes, started as an operator does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kit.fleet.homes import KEY

START_SECONDS = 60.0


class NodeProcess:
    """A node with its home directory, on a fixed port.

    Args:
        directory: used by this node only.
        url: of the database, for the node role.
        name: of the node.
        lease: seconds.
        flags: additional flags of `serve`.
    """

    def __init__(
        self,
        directory: Path,
        url: str,
        name: str,
        *,
        lease: float = 2.0,
        slots: int = 8,
        flags: Sequence[str] = (),
    ) -> None:
        self.directory, self.name = directory, name
        self._url, self._lease, self._slots, self._flags, self.port = url, lease, slots, flags, 0
        state = directory / "state"
        state.mkdir(mode=0o700, parents=True)
        key = state / "audit.key"
        key.write_bytes(KEY)
        key.chmod(0o600)
        self.process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> None:
        """Start it without waiting until it serves."""
        with (self.directory / "log").open("a") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "muniment", "serve", "--json", "--ledger", self._url),
                    *("--node", self.name, "--slots", str(self._slots), "--lease", str(self._lease)),
                    *("--port", str(self.port), "--grace", "5", "--socket", str(self.directory / "s")),
                    *self._flags,
                ],
                env={**os.environ, "MUNIMENT_HOME": str(self.directory)},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.directory,
            )

    def wait(self) -> None:
        """Wait until it serves."""
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.directory / "log").read_text()[-3000:]
        self.url = json.loads(line)["url"]
        self.port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """End it like a power cut."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        """End it as its operator would."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            self.process.wait(30)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    @property
    def log(self) -> str:
        """Return its standard error until now."""
        return (self.directory / "log").read_text()

    @property
    def copies(self) -> Path:
        """Return the directory of its working copies."""
        return self.directory / "state" / "copies"
