"""Whether two checkouts look the same from outside: to users of the library, shells, clients, reviewers.

    python benchmarks/same_surface.py OTHER

Compared byte for byte are the public API with its signatures and docstrings, the help of every command, the
OpenAPI document, the codes of errors, the policies and the corpus. What differs is shown, and the exit code
is 1. Both are run by this interpreter, in whose environment their dependencies are.
"""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import Request, urlopen

HERE = Path(__file__).parents[1]

SEEN_FROM_OUTSIDE = r"""
import hashlib, importlib, inspect, json, re, sys
from pathlib import Path

seen = {}


def shown(text):
    # Where a class stands is no promise; what it is called is.
    return re.sub(r"\bmuniment(\.\w+)+\.(?=[A-Z])", "", re.sub(r" at 0x[0-9a-f]+", "", str(text)))


def api(name, thing):
    try:
        seen[name] = shown(inspect.signature(thing))
    except (TypeError, ValueError):
        seen[name] = shown(type(thing).__name__)
    seen[name + " says"] = inspect.getdoc(thing) or ""
    if inspect.isclass(thing):
        for member, value in sorted(vars(thing).items()):
            if not member.startswith("_"):
                value = getattr(value, "fget", value)
                if callable(value):
                    api(f"{name}.{member}", value)


import muniment

for module in ("muniment", "muniment.client"):
    loaded = importlib.import_module(module)
    for public in sorted(loaded.__all__):
        api(f"{module}.{public}", getattr(loaded, public))

import pkgutil

from muniment.errors import MunimentError

for found in pkgutil.walk_packages(muniment.__path__, "muniment."):
    if not found.name.endswith(("__main__", ".zygote", ".driver")):
        importlib.import_module(found.name)
waiting = [MunimentError]
while waiting:
    error = waiting.pop()
    waiting += error.__subclasses__()
    where = "client" if error.__module__.startswith("muniment.client") else "library"
    seen[f"error {where} {error.__name__}"] = str(getattr(error, "code", None))

import typer.main
from typer.testing import CliRunner

from muniment.cli.app import app


def helped(command, *path):
    told = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "100"})
    seen[" ".join(["help", *path])] = told.output
    for name, below in sorted(getattr(command, "commands", {}).items()):
        helped(below, *path, name)


helped(typer.main.get_command(app))

package = Path(muniment.__file__).parent
for folder, pattern in (("policies", "*"), ("testing/corpus", "*.json")):
    for path in sorted((package / folder).glob(pattern)):
        if path.is_file():
            seen[f"{folder}/{path.name}"] = hashlib.sha256(path.read_bytes()).hexdigest()
json.dump(seen, sys.stdout)
"""


def seen_in(checkout: Path) -> dict[str, str]:
    """Everything that is seen of a checkout, by name."""
    with TemporaryDirectory() as base:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(checkout / "src"),
            "HOME": base,
            "MUNIMENT_HOME": f"{base}/home",
        }
        code = [sys.executable, "-c", SEEN_FROM_OUTSIDE]
        told = subprocess.run(code, env=environment, check=True, stdout=subprocess.PIPE).stdout
        return json.loads(told) | {"openapi": openapi(Path(base), environment)}


def openapi(base: Path, environment: dict[str, str]) -> str:
    """The document that a daemon answers with."""
    (base / "work" / ".git").mkdir(parents=True)
    command = [sys.executable, "-m", "muniment", "serve", "--json", "--workspace", str(base / "work")]
    with subprocess.Popen(
        command, env=environment, cwd=base, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as daemon:
        try:
            told = json.loads(daemon.stdout.readline())
            token = Path(told["token_file"]).read_text(encoding="ascii").strip()
            asked = Request(f"{told['url']}/openapi.json", headers={"Authorization": f"Bearer {token}"})
            with urlopen(asked) as answer:
                return json.dumps(json.load(answer), indent=1, sort_keys=True)
        finally:
            daemon.terminate()


def main() -> int:
    """Compare, and show what differs."""
    ours, theirs = seen_in(HERE), seen_in(Path(sys.argv[1]).resolve())
    differing = [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
    for name in differing:
        before, after = (str(seen.get(name, "(not there)")).splitlines() for seen in (theirs, ours))
        print(f"== {name}")
        print("\n".join(difflib.unified_diff(before, after, "other", "here", lineterm="", n=1)))
    print(f"{len(ours)} things were compared, {len(differing)} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
