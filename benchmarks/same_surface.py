"""Compare the public surface of two checkouts: for users of the library, shells, clients, reviewers.

    python benchmarks/same_surface.py OTHER [--words]

Compared byte for byte are the public API with its signatures and docstrings, the help of every command, the
OpenAPI document, the codes of errors, the policies and the corpus, and the output of a session of commands,
HTTP requests, MCP requests and pages, except names, times and digests that are generated each time.
Differences are printed, and the exit code is 1. This interpreter runs both; its environment must contain
their dependencies.

With `--words` the texts in an output may differ: the sentences of people, but no exit code, status, error
code, member, number, path, tag or attribute. Printed are the pairs of changed texts, then the outputs that
differ in more than words; only those make the exit code 1.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

HERE = Path(__file__).parents[1]

SEEN_FROM_OUTSIDE = r"""
import hashlib, importlib, inspect, json, re, sys
from pathlib import Path

seen = {}


def shown(text):
    # The module of a class is not part of the surface; its name is.
    return re.sub(r"\bmuniment(\.\w+)+\.(?=[A-Z])", "", re.sub(r" at 0x[0-9a-f]+", "", str(text)))


def api(name, thing):
    try:
        seen[name] = shown(inspect.signature(thing))
    except (TypeError, ValueError):
        seen[name] = shown(type(thing).__name__)
    seen[name + " docstring"] = inspect.getdoc(thing) or ""
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
    result = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "100"})
    seen[" ".join(["help", *path])] = result.output
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


COMMANDS = """
remember The user prefers dark mode in all editors
remember --scope project We deploy on Thursdays at ten
remember --json The staging database is db-7
remember --json --dry-run My sister is called Ada
remember --expires 30d --json The office is closed for painting
remember
remember --scope galaxy Hello there world
remember --expires yesterday The office is open
remember The key is AKIAIOSFODNN7EXAMPLE
ls
ls --json
show user/nothing.md
show ../../etc/passwd
recall which editor theme
recall --json deploy day
recall
recall --limit 0 deploy
history
history --json
forget dark mode --dry-run
forget --json dark mode
forget --yes --json staging database
forget ../etc/passwd
undo remember-nothing
dream
dream --json --yes
index verify
index rebuild --json
review list
review list --json
review show nothing
audit verify
audit verify --json
erase user/nothing.md
why user/nothing.md
policy list
policy show strict
policy test strict
policy lint strict
policy explain strict read user/a.md
policy show nothing
token list
token create web --trust agent
token list --json
projects list
projects list --json
export --to - --scope user
import /nowhere
backup --to /nowhere/at/all
completion bash
doctor --json
doctor
setup --dry-run
tool --policy nothing
nothing
""".strip().splitlines()

REQUESTS = (
    *(("GET", path, None) for path in ("/health", "/healthz", "/readyz", "/capabilities", "/nothing")),
    *(
        ("GET", f"/workspace/memory/{path}", None)
        for path in ("tasks", "review", "audit/head", "remember/remember-1")
    ),
    ("POST", "/workspace/memory/recall", {"query": "which editor"}),
    ("POST", "/workspace/memory/recall", {"query": "", "limit": 99}),
    ("POST", "/workspace/memory/remember", {"content": ""}),
    ("POST", "/workspace/memory/remember", {"content": "The lab has a kiln", "more": 1}),
    ("POST", "/workspace/memory/remember", {"content": "The lab has a kiln", "scope": "project"}),
    ("POST", "/workspace/memory/remember", {"content": "The key is AKIAIOSFODNN7EXAMPLE"}),
    ("POST", "/workspace/memory/forget", {"query": "kiln", "dryRun": True}),
    ("POST", "/workspace/memory/dream", {}),
    ("GET", "/workspace/memory/tasks", None),
    ("POST", "/workspace/memory/undo", {"taskId": "remember-1"}),
    ("POST", "/workspace/memory/erase", {"target": "user/nothing.md", "dryRun": False}),
    ("POST", "/workspace/memory/review/nothing/approve", {"digest": "x"}),
    ("POST", "/ui", {}),
    ("PUT", "/health", None),
)

MCP_REQUESTS = (
    ("tools/list", {}),
    ("prompts/list", {}),
    ("resources/list", {}),
    ("resources/templates/list", {}),
    *(
        ("tools/call", {"name": name, "arguments": arguments})
        for name, arguments in (
            ("remember", {"fact": "The user plays the viola"}),
            ("remember", {"fact": ""}),
            ("remember", {"fact": "The key is AKIAIOSFODNN7EXAMPLE"}),
            ("remember", {"text": "x"}),
            ("recall", {"query": "which instrument"}),
            ("recall", {"query": ""}),
            ("forget", {"query": "viola", "dry_run": True}),
            ("forget", {"query": "nothing like this"}),
            ("history", {}),
            ("undo", {"task_id": "remember-1"}),
            ("show", {"path": "user/nothing.md"}),
            ("nothing", {}),
        )
    ),
    ("resources/read", {"uri": "memory:///nothing"}),
    ("nothing", {}),
)

PAGES = (
    *("memory", "search?query=kiln", "search", "timeline", "tasks", "reviews", "review?id=nothing", "policy"),
    *("audit", "audit?verify=1", "health", "entry?path=user/nothing.md", "task?id=nothing", "nothing"),
)
"""Views of the page of one workspace."""

DRAWN = {
    r"[0-9A-HJKMNP-TV-Z]{26}": "ULID",
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}": "UUID",
    r"\b[0-9a-f]{8,64}\b": "HEX",
    r"\d{4}-\d\d-\d\d([T ][\d:.]+(Z|[+]00:00)?)?": "TIME",
    r'("seconds": |"at": |pid |port |:)[\d.]+': r"\1N",
    r"\d+[.]\d+ ?(s|ms)\b": "N s",
    r"mnmt_\w+": "TOKEN",
    r'"code": "[\w-]{22}"': '"code": "CODE"',
}
"""Generated values and their replacements."""


def run_session(base: Path, environment: dict[str, str]) -> dict[str, str]:
    """Return the output of each command of a session."""
    (base / "desk" / ".git").mkdir(parents=True)
    seen = {}
    for number, line in enumerate(COMMANDS):
        command = [sys.executable, "-m", "muniment", *line.split()]
        done = subprocess.run(
            command,
            check=False,
            env=environment,
            cwd=base / "desk",
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )
        output = f"exit {done.returncode}\n{done.stdout.decode()}\n-- errors\n{done.stderr.decode()}"
        seen[f"session {number:02} muniment {line}"] = normalise(output, base)
    return seen


def normalise(text: str, base: Path) -> str:
    """Return a text without generated values."""
    text = text.replace(str(base), "BASE")
    for drawn, replacement in DRAWN.items():
        text = re.sub(drawn, replacement, text)
    return text


def read_surface(checkout: Path) -> dict[str, str]:
    """Return the public surface of a checkout, by name."""
    with TemporaryDirectory() as base:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(checkout / "src"),
            "HOME": base,
            "MUNIMENT_HOME": f"{base}/home",
        }
        code = [sys.executable, "-c", SEEN_FROM_OUTSIDE]
        output = subprocess.run(code, env=environment, check=True, stdout=subprocess.PIPE).stdout
        session = run_session(Path(base), environment)
        mcp = call_mcp(Path(base), environment)
        return json.loads(output) | session | mcp | query_daemon(Path(base), environment)


def call_mcp(base: Path, environment: dict[str, str]) -> dict[str, str]:
    """Return the responses of `muniment mcp` on standard input and output."""
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    requests = (("initialize", hello), *MCP_REQUESTS)
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        for number, (method, params) in enumerate(requests)
    ]
    lines.insert(1, json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))
    command = [sys.executable, "-m", "muniment", "mcp"]
    seen = {}
    with subprocess.Popen(
        command,
        env=environment,
        cwd=base / "desk",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        for line in lines:
            server.stdin.write(line + "\n")
            server.stdin.flush()
            number = json.loads(line).get("id")
            if number is None:
                continue
            while (document := json.loads(server.stdout.readline())).get("id") != number:
                pass
            name = f"mcp {number:02} {requests[number]}"
            seen[name] = normalise(json.dumps(document, indent=1, sort_keys=True), base)
        server.stdin.close()
    return seen


def read_pages(url: str, head: dict[str, str], base: Path) -> dict[str, str]:
    """Return the pages of a daemon, after the sign-in."""
    sent = Request(
        f"{url}/ui", data=b"{}", headers=head | {"Content-Type": "application/json"}, method="POST"
    )
    opened = urlsplit(read_response(sent)[1]["url"])
    host = opened.netloc
    headers = {"Host": host, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}
    form = {"Origin": f"http://{host}", "Content-Type": "application/x-www-form-urlencoded"}

    def fetch(method: str, path: str, body: str | None = None) -> tuple[HTTPResponse, str]:
        connection = HTTPConnection("127.0.0.1", opened.port, timeout=60)
        connection.request(method, path, body, headers | (form if body is not None else {}))
        response = connection.getresponse()
        return response, f"{response.status}\n{response.read().decode()}"

    code = opened.fragment.rpartition("=")[2] or opened.fragment
    response, seen = fetch("POST", "/sign-in", f"code={code}&to=/")
    pages = {"page sign-in": seen}
    headers["Cookie"] = (response.getheader("Set-Cookie") or "").partition(";")[0]
    home = (fetch("GET", "/")[0].getheader("Location") or "/w/none/memory").rpartition("/")[0]
    for path in PAGES:
        pages[f"page {path}"] = fetch("GET", f"{home}/{path}")[1]
    pages["page forget"] = fetch("POST", f"{home}/forget", "query=viola")[1]
    return {
        name: normalise(text.replace(host, "HOST").replace(home, "/w/HOME"), base)
        for name, text in pages.items()
    }


def query_daemon(base: Path, environment: dict[str, str]) -> dict[str, str]:
    """Return the responses of a daemon: its OpenAPI document, and requests of a session."""
    (base / "work" / ".git").mkdir(parents=True)
    command = [sys.executable, "-m", "muniment", "serve", "--json", "--workspace", str(base / "work")]
    with subprocess.Popen(
        command, env=environment, cwd=base, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as daemon:
        try:
            output = json.loads(daemon.stdout.readline())
            token = Path(output["token_file"]).read_text(encoding="ascii").strip()
            head = {"Authorization": f"Bearer {token}"}
            with urlopen(Request(f"{output['url']}/openapi.json", headers=head)) as answer:
                seen = {"openapi": json.dumps(json.load(answer), indent=1, sort_keys=True)}
            for number, (method, path, body) in enumerate(REQUESTS):
                sent = None if body is None else json.dumps(body).encode()
                kind = {} if body is None else {"Content-Type": "application/json"}
                request = Request(f"{output['url']}{path}", data=sent, headers=head | kind, method=method)
                response, document = read_response(request)
                if response.startswith("202"):
                    kind, _, _ = document["taskId"].partition("-")
                    wait = head | {"Prefer": "wait=30"}
                    ended = f"{output['url']}/workspace/memory/{kind}/{document['taskId']}"
                    response += read_response(Request(ended, headers=wait))[0]
                seen[f"answer {number:02} {method} {path} {body}"] = normalise(response, base)
            return seen | read_pages(output["url"], head, base)
        finally:
            daemon.terminate()


def read_response(request: Request) -> tuple[str, dict[str, object]]:
    """Return status and body of a response as one text, and its document."""
    try:
        with urlopen(request) as answer:
            status, body = answer.status, answer.read().decode()
    except HTTPError as problem:
        status, body = problem.code, problem.read().decode()
    return f"{status}\n{body}\n", json.loads(body)


class Markup(HTMLParser):
    """Split a page into its markup and its texts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[object] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Add a tag with its attributes; labels count as texts."""
        self.texts += [value or "" for name, value in attrs if name in LABELS]
        self.tags.append((tag, [each for each in attrs if each[0] not in LABELS]))

    def handle_data(self, data: str) -> None:
        """Add a text."""
        self.texts += [" ".join(data.split())] if data.strip() else []


LABELS = {"title", "placeholder", "aria-label", "alt"}


def split_words(text: str) -> tuple[object, list[str]]:
    """Return the parts of an output that are not words for people, and its texts."""
    if "<!doctype html>" in text.lower():
        markup = Markup()
        markup.feed(text)
        return markup.tags, markup.texts
    texts: list[str] = []

    def mask(value: object) -> object:
        if isinstance(value, dict):
            return {name: mask(each) for name, each in value.items()}
        if isinstance(value, list):
            return [mask(each) for each in value]
        if isinstance(value, str) and " " in value:
            texts.append(value)
            return re.findall(r"\[[a-z_]+\]", value)
        return value

    head, _, body = text.partition("\n")
    for document, before in ((text, ""), (body.partition("\n-- errors")[0], head)):
        try:
            return [before, mask(json.loads(document))], texts
        except ValueError:
            continue
    marks = re.findall(r"^exit \d+|\[[a-z_]+\]", text, flags=re.MULTILINE)
    return [marks, sorted(set(re.findall(r"(?<!-)--[a-z-]+|\b[\w./-]+\.md\b", text)))], text.splitlines()


def print_words(before: str, after: str) -> None:
    """Print the texts that changed, in pairs."""
    old, new = (split_words(text)[1] for text in (before, after))
    for tag, start, end, begin, stop in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            print("\n".join(f"- {text}" for text in old[start:end]))
            print("\n".join(f"+ {text}" for text in new[begin:stop]))


def main() -> int:
    """Compare, and print the differences."""
    own, theirs = read_surface(HERE), read_surface(Path(sys.argv[1]).resolve())
    differing = [name for name in sorted({*own, *theirs}) if own.get(name) != theirs.get(name)]
    more = differing
    if "--words" in sys.argv:
        pairs = {name: (theirs.get(name, ""), own.get(name, "")) for name in differing}
        more = [name for name, (old, new) in pairs.items() if split_words(old)[0] != split_words(new)[0]]
        for name in differing:
            if name not in more:
                print(f"== {name}")
                print_words(*pairs[name])
        print("\n==== more than words")
    for name in more:
        before, after = (str(seen.get(name, "(not there)")).splitlines() for seen in (theirs, own))
        print(f"== {name}")
        print("\n".join(difflib.unified_diff(before, after, "other", "here", lineterm="", n=1)))
    print(f"{len(own)} outputs were compared, {len(differing)} differ, {len(more)} in more than words")
    return 1 if more else 0


if __name__ == "__main__":
    sys.exit(main())
