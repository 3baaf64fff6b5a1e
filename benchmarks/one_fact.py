"""Count the work for one remembered fact in a checkout: functions, files, parses, transactions, syncs, forms.

    python benchmarks/one_fact.py [CHECKOUT]

Counts while the library remembers the second fact of a new memory by the rules, without a worker. No number
depends on the speed of the machine. Functions are identified by file and name, since modules move. A form is
a dataclass, named tuple or pydantic model; it counts if an instance was created or returned that contains the
text of the fact or its path, directly or in a member. Only `strace` sees the syncs of SQLite.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from measuring import run_json, unfenced_policy

FACT = "The user prefers dark mode in all editors"
WATCHED = {
    "front matter located": {("content/frontmatter.py", name) for name in ("locate", "find_front_matter")},
    "values of it read": {
        (f"content/{file}.py", f"read_{kind}")
        for file in ("frontmatter", "scalar")
        for kind in ("scalar", "list")
    },
    "paths canonicalised": {("policy/grammar.py", "canonicalise"), ("kernel/path.py", "canonicalise")},
}
"""The counted functions of each figure, in either checkout."""

WRITING = ("INSERT", "UPDATE", "DELETE", "REPLACE")
SETTLED_SECONDS = 0.5
"""After this time, the times of a file prove that it is unchanged; before, it may be read again."""

MARK = "the-fact-that-is-counted"


class Passed:
    """A profile function, with its observations."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, int]] = Counter()
        self.watched: Counter[str] = Counter()
        self.canonicalised: Counter[str] = Counter()
        self.syncs = 0
        self.made: list[object] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Record one event of `sys.setprofile`."""
        if event == "c_call":
            self.syncs += argument in (os.fsync, os.fdatasync)
        elif event == "call" and "/muniment/" in frame.f_code.co_filename:
            self.called(frame)
        elif event == "return":
            if frame.f_code.co_name == "__init__":
                argument = frame.f_locals.get(frame.f_code.co_varnames[0])
            if is_form(argument):
                self.made.append(argument)

    def called(self, frame: FrameType) -> None:
        """Record a call of a function of the package."""
        code, caller = frame.f_code, frame.f_back.f_code.co_filename if frame.f_back else ""
        self.calls[code.co_filename, code.co_firstlineno] += 1
        where = code.co_filename.rpartition("/muniment/")[2], code.co_name
        for name, functions in WATCHED.items():
            if where in functions and caller != code.co_filename:
                self.watched[name] += 1
                if name == "paths canonicalised":
                    self.canonicalised[str(frame.f_locals[code.co_varnames[0]])] += 1


class Transactions:
    """Writes to SQLite: in transactions, and single ones."""

    def __init__(self) -> None:
        self.ended = self.alone = 0

    def connect(self, *arguments: Any, **options: Any) -> sqlite3.Connection:
        """Open a connection like `sqlite3.connect`, and observe each statement."""
        connection = CONNECT(*arguments, **options)

        def seen(statement: str) -> None:
            word = statement.lstrip().partition(" ")[0].upper()
            self.ended += word == "COMMIT"
            self.alone += word in WRITING and not connection.in_transaction

        connection.set_trace_callback(seen)
        return connection


CONNECT = sqlite3.connect


def is_form(thing: object) -> bool:
    """Return whether it is an instance of a model of the package."""
    kind = type(thing)
    is_model = is_dataclass(kind) or hasattr(kind, "_fields") or hasattr(kind, "model_fields")
    return is_model and kind.__module__.split(".")[0] == "muniment"


def list_members(thing: object) -> Iterable[object]:
    """Return the direct members of a model or container."""
    if is_dataclass(thing):
        return (getattr(thing, field.name, None) for field in fields(thing))
    if isinstance(thing, Mapping):
        return (*thing, *thing.values())
    if isinstance(thing, tuple | list | set | frozenset):
        return thing
    return vars(thing).values() if is_form(thing) else ()


def carries(thing: object, texts: tuple[str, ...], forms: set[str], depth: int = 8) -> bool:
    """Return whether it contains one of the words; add the forms on the path to `forms`."""
    if isinstance(thing, str | bytes):
        text = thing if isinstance(thing, str) else thing.decode(errors="replace")
        return any(word in text for word in texts)
    found = [each for each in list_members(thing) if carries(each, texts, forms, depth - 1)] if depth else []
    if found and is_form(thing):
        forms.add(type(thing).__name__)
    return bool(found)


def mark() -> None:
    """Mark the start and the end of the counted fact for `strace`."""
    with suppress(FileNotFoundError):
        Path(MARK).rmdir()


def count(base: Path) -> dict[str, Any]:
    """Remember two facts below a directory, and count during the second."""
    transactions, passed = Transactions(), Passed()
    sqlite3.connect = transactions.connect
    import muniment

    policy = unfenced_policy(base)
    with muniment.open(base, home=base / "home", policy=policy, in_process=True) as memory:
        memory.remember("The user drinks tea")
        time.sleep(SETTLED_SECONDS)
        transactions.ended = transactions.alone = 0
        mark()
        threading.setprofile(passed)
        sys.setprofile(passed)
        result = memory.remember(FACT)
        sys.setprofile(None)
        threading.setprofile(None)
        mark()
    for name in WATCHED:
        if not passed.watched[name]:
            sys.exit(f"no call counted as {name!r}: add to WATCHED what does it in {muniment.__file__}")
    if not transactions.ended:
        sys.exit("no transaction was seen: the package does not call sqlite3.connect by that name any more")
    forms: set[str] = set()
    for thing in passed.made:
        carries(thing, (FACT.partition(" ")[2], result.files_touched[0].partition("/")[2]), forms)
    return {
        "functions": len(passed.calls),
        "calls of them": passed.calls.total(),
        "files": len({file for file, _line in passed.calls}),
        **{name: passed.watched[name] for name in WATCHED},
        "of these of one path, at most": max(passed.canonicalised.values()),
        "transactions": transactions.ended,
        "writes in none": transactions.alone,
        "syncs by Python": passed.syncs,
        "forms": sorted(forms),
    }


def count_in_process(checkout: Path) -> dict[str, Any]:
    """Return the counts for a fact in a checkout, from a separate process."""
    with TemporaryDirectory() as base:
        work, trace = Path(base, "work"), Path(base, "trace")
        (work / ".git").mkdir(parents=True)
        strace = ("strace", "-f", "-qq", "-e", "trace=fsync,fdatasync,rmdir", "-e", "signal=none", "-o")
        before = (*strace, str(trace)) if shutil.which("strace") else ()
        found = run_json(checkout, __file__, "--count", str(work), before=before)
        if before:
            lines = trace.read_text().split(MARK)[1].splitlines()
            found["syncs, with SQLite's"] = sum("sync(" in line for line in lines)
    forms = found.pop("forms")
    return found | {"forms": forms}


def main() -> None:
    """Print a table, or in a child process, the counts."""
    if sys.argv[1:2] == ["--count"]:
        print(json.dumps(count(Path(sys.argv[2]))))
        return
    checkout = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    for name, value in count_in_process(checkout).items():
        print(f"{name:32}{value if isinstance(value, int) else len(value)}")
        if not isinstance(value, int):
            print(textwrap.fill(", ".join(value), 110, initial_indent="    ", subsequent_indent="    "))


if __name__ == "__main__":
    main()
