"""A corpus driver over a `Sandbox` without a worker, as a program: `in_process.py DIRECTORY ID…`."""

import sys
from functools import partial
from pathlib import Path

from muniment.testing.corpus.driver import drive
from muniment.testing.corpus.subjects import SandboxSubject

if __name__ == "__main__":
    drive(partial(SandboxSubject, in_process=True), Path(sys.argv[1]), sys.argv[2:])
