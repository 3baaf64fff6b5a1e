"""All surfaces with one method, each over a new memory: `surface.call("edit", path=…, text=…)`.

The response contains the members that all surfaces have in common. It is `Failed` with the error code, or
`LACKS` if the surface does not have the operation, see `muniment.operations.table`.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
import tarfile
from contextlib import ExitStack, closing
from dataclasses import dataclass
from urllib.parse import urlencode

import muniment
from kit.cli.commands import invoked
from kit.mcp import server_of, with_client
from kit.server.process import BASE, policy_file
from kit.server.raw import running
from muniment.client import AsyncClient, Client
from muniment.client.errors import ClientError
from muniment.errors import CODES, MunimentError
from muniment.types.documents import camel

LACKS = "lacks"


@dataclass(frozen=True)
class Failed:
    """A failed operation.

    Attributes:
        code: the error code of HTTP; codes that responses of HTTP do not have become `refused`.
    """

    code: str

    @classmethod
    def by(cls, code):
        """Create one from the error code of a surface."""
        same = {"invalid_query": "invalid_content", "nothing_to_erase": "not_found"}
        return cls(same.get(code) or (code in CODES and CODES[code].answer) or code)


_IDS = re.compile(
    r"[a-z]+-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?:[a-z]+-)?[0-9A-HJKMNP-TV-Z]{26}|"
    r"\d{4}-\d\d-\d\d(?:T[\d:.]+Z)?"
)


def without_ids(text):
    """Replace ids of tasks and entries, and times."""
    return _IDS.sub("~", text)


def files_of(home):
    """Return the entries and indexes of a home, by path; without ids, which differ between surfaces."""
    found = sorted(path for path in home.rglob("*.md") if "state" not in path.relative_to(home).parts)
    return {
        re.sub(r"projects/[^/]+", "projects", str(path.relative_to(home))): without_ids(path.read_text())
        for path in found
    }


TELLS = {
    "remember": ("files_touched", "trust", "status"),
    "forget": ("removed_entries[].path", "status"),
    "dream": ("touched_scopes", "status"),
    "recall": ("entries[].path",),
    "list": ("entries[].path", "entries[].title", "entries[].trust"),
    "show": ("path", "text", "trust", "pinned"),
    "edit": ("path", "changed"),
    "pin": ("path", "previous_path", "pinned"),
    "history": ("[].asked", "[].path", "[].kind"),
    "why": ("path", "state", "trust", "asked"),
    "undo": ("files_touched",),
    "reviews": ("[].kind",),
    "index": ("correct",),
    "explain": ("verdict", "rule"),
    "erase": ("status",),
    "export": ("entries",),
}
"""The compared members of the result of each operation; `[].` marks members of list items."""


def told(operation, value, names, get):
    """Return the compared members of a result.

    Args:
        operation: its name.
        value: the result of a surface.
        names: names of members on this surface, by operation and member, if they differ.
        get: returns a member of a value by name, or `LACKS`.
    """
    found = []
    for member in TELLS[operation]:
        of_list, _, name = names.get((operation, member), member).rpartition("[].")
        if "[]." not in names.get((operation, member), member):
            found.append(_plain(get(value, name)))
        else:
            items = get(value, of_list) if of_list else value
            found.append(LACKS if items == LACKS else [_plain(get(each, name)) for each in items])
    return found


def _plain(value):
    if isinstance(value, tuple | list):
        return sorted(map(str, value))
    return value if value is None or isinstance(value, bool | int) else str(value)


def attribute(value, name):
    return getattr(value, name, LACKS)


def without_status(value, name):
    return LACKS if name == "status" else attribute(value, name)


def member(value, name):
    return value.get(name, LACKS)


class Surface:
    """One surface.

    Attributes:
        home: of its memory.
        task: the id of the newest task that changed something.
    """

    def __init__(self, base):
        (base / "work" / ".git").mkdir(parents=True)
        self.base, self.home, self.work, self.task = base, base / "home", base / "work", "remember-none"
        self.opened = ExitStack()

    def call(self, operation, **arguments):
        """Call an operation."""
        if operation == "undo":
            arguments["task_id"] = self.task
        try:
            return self.asked(operation, arguments)
        except (MunimentError, ClientError) as error:
            return Failed.by(error.code)

    def close(self):
        self.opened.close()


class Library(Surface):
    """`Memory`."""

    def __init__(self, base):
        super().__init__(base)
        policy = policy_file(base, require='"none"')
        self.memory = self.opened.enter_context(
            muniment.open(self.work, home=self.home, policy=policy, in_process=True)
        )

    def asked(self, operation, arguments):
        if operation == "export":
            file = io.BytesIO()
            return [self.carry_out("export", {"file": file}).entries, _exported(file.getvalue())]
        result = self.carry_out(operation, arguments)
        self.task = getattr(result, "task_id", None) or self.task
        return told(operation, result, {}, attribute)

    def carry_out(self, operation, arguments):
        return getattr(self.memory, operation)(**arguments)


class AsyncLibrary(Library):
    """`AsyncMemory`."""

    def carry_out(self, operation, arguments):
        async def run():
            memory = muniment.AsyncMemory(self.memory)
            return await getattr(memory, operation)(**arguments)

        return asyncio.run(run())


class OverHttp(Surface):
    """`Client`, over a daemon."""

    def __init__(self, base):
        super().__init__(base)
        self.daemon = self.opened.enter_context(running(base))
        where = {"url": self.daemon.url, "token": self.daemon.token, "workspace": self.work}
        self.where, self.client = where, self.opened.enter_context(Client(**where))

    def asked(self, operation, arguments):
        if operation == "export":
            file = io.BytesIO()
            return [self.carry_out("export", {"file": file}).entries, _exported(file.getvalue())]
        result = self.carry_out(operation, arguments)
        if operation in {"remember", "forget", "dream"}:
            is_dry = arguments.get("dry_run")  # The document of a preview has no status.
            return told(operation, result, {}, attribute if not is_dry else without_status)
        self.task = getattr(result, "task_id", None) or self.task
        return told(operation, result, {}, attribute)

    def carry_out(self, operation, arguments):
        result = getattr(self.client, operation)(**arguments)
        if operation in {"remember", "forget", "dream"}:
            ended = result.wait(60)
            self.task = result.task_id if ended.touched_scopes else self.task
            return ended
        return result


class OverAsyncClient(OverHttp):
    """`AsyncClient`, over a daemon."""

    def carry_out(self, operation, arguments):
        async def run():
            async with AsyncClient(**self.where) as client:
                result = await getattr(client, operation)(**arguments)
                if operation in {"remember", "forget", "dream"}:
                    ended = await result.wait(60)
                    self.task = result.task_id if ended.touched_scopes else self.task
                    return ended
                return result

        return asyncio.run(run())


IN_HTTP = {
    ("forget", "removed_entries[].path"): "removed_entries[].file_path",
    **{("history", each): f"steps{each}" for each in TELLS["history"]},
    ("reviews", "[].kind"): "reviews[].kind",
}
"""Names of members in HTTP documents, if they differ from the library."""

GETS = {"list": "entries", "show": "entry", "history": "history", "why": "why", "reviews": "review"}


class Raw(OverHttp):
    """Raw HTTP requests and their documents."""

    def asked(self, operation, arguments):
        names = {"dry_run": "dryRun", "task_id": "taskId"}
        body = {names.get(name, name): value for name, value in arguments.items()}
        # A query cannot contain null.
        query = {name: value for name, value in body.items() if value is not None}
        if operation in {"remember", "forget", "dream"}:
            accepted = self.daemon.post(f"{BASE}/{operation}", body)
            if accepted.status_code != 202:
                return Failed.by(accepted.json()["code"])
            done = self.daemon.wait(accepted.json()["taskId"])
            if done["status"] != "completed":
                return Failed.by(done["error"]["code"])
            self.task = done["taskId"] if done["result"]["touchedScopes"] else self.task
            return self.document(operation, done["result"])
        if operation == "explain":
            answer = self.daemon.get(f"{BASE}/policy/explain?{urlencode(query)}")
        elif operation in {*GETS, "export"}:
            answer = self.daemon.get(f"{BASE}/{GETS.get(operation, operation)}?{urlencode(query)}")
        else:
            answer = self.daemon.post(f"{BASE}/{operation}", body)
        if answer.status_code != 200:
            return Failed.by(answer.json()["code"])
        if operation == "export":
            return [json.loads(answer.headers["x-muniment-export"])["entries"], _exported(answer.content)]
        document = answer.json()
        self.task = document.get("taskId") or self.task
        return self.document(operation, document)

    def document(self, operation, said):
        default = {"status": LACKS}
        return told(operation, said, IN_HTTP, lambda value, name: value.get(camel(name), default.get(name)))


EDITOR = """import pathlib, sys
file = pathlib.Path(sys.argv[2])
text = file.read_text()
end = text.index("---\\n", 4) + 4 if text.startswith("---\\n") else 0
file.write_text(text[:end] + pathlib.Path(sys.argv[1]).read_text())
"""


IN_COMMANDS = {
    ("list", "entries[].title"): "entries[].name",
    ("undo", "files_touched"): "changes[].path",
    **{("history", each): f"steps{each}" for each in TELLS["history"]},
    ("reviews", "[].kind"): "reviews[].kind",
}
"""Names of members in documents of commands, if they differ from the library."""


def _yes(arguments):
    return [] if arguments["dry_run"] else ["--yes"]


def _scope(arguments):
    return [f"--scope={arguments['scope']}"] if arguments.get("scope") else []


def _limit(arguments):
    return [f"--limit={arguments['limit']}"] if arguments.get("limit") else []


GIVEN = {
    "remember": lambda asked, _task, _file: ["remember", *_scope(asked), "--", asked["content"]],
    "forget": lambda asked, _task, _file: ["forget", *_scope(asked), *_yes(asked), "--", asked["query"]],
    "dream": lambda asked, _task, _file: ["dream", *_scope(asked), *_yes(asked)],
    "recall": lambda asked, _task, _file: ["recall", *_limit(asked), "--", asked["query"]],
    "list": lambda asked, _task, _file: ["ls", *filter(None, [asked.get("scope")])],
    "show": lambda asked, _task, _file: ["show", asked["path"]],
    "why": lambda asked, _task, _file: ["why", asked["path"]],
    "edit": lambda asked, _task, _file: ["edit", asked["path"]],
    "pin": lambda asked, _task, _file: ["pin", asked["path"], *(["--dry-run"] if asked["dry_run"] else [])],
    "history": lambda _asked, _task, _file: ["history"],
    "undo": lambda _asked, task, _file: ["undo", task],
    "reviews": lambda _asked, _task, _file: ["review", "list"],
    "export": lambda _asked, _task, file: ["export", "--to", str(file)],
    "index": lambda asked, _task, _file: ["index", "verify" if asked["dry_run"] else "rebuild"],
    "erase": lambda asked, _task, _file: ["erase", asked["target"], *_yes(asked)],
}
"""The command of an operation, from its arguments, the newest task, and the file of an export."""


class CommandLine(Surface):
    """Commands with `--json`."""

    def __init__(self, base):
        super().__init__(base)
        self.policy = policy_file(base, require='"none"')
        (base / "editor.py").write_text(EDITOR)

    def asked(self, operation, arguments):
        if operation == "edit" and not arguments["dry_run"]:
            (self.base / "text").write_text(arguments["text"])
        if operation not in GIVEN or (operation == "edit" and arguments["dry_run"]):
            return self._carry_out_directly(operation, arguments)
        file = self.base / "export.tar"
        file.unlink(missing_ok=True)
        given = GIVEN[operation](arguments, self.task, file)
        at = given.index("--") if "--" in given else len(given)
        given[at:at] = ["--json", f"--policy={self.policy}", f"--workspace={self.work}"]
        editor = f"{sys.executable} {self.base / 'editor.py'} {self.base / 'text'}"
        done = invoked(given, {"MUNIMENT_HOME": str(self.home), "VISUAL": editor}, None)
        if done.exit_code:
            code = json.loads(done.stdout)["error"]["code"]
            is_path = operation == "list" and code == "refused"  # `ls` accepts a path, not only a scope.
            return Failed.by("invalid_scope" if is_path else code)
        said = json.loads(done.stdout)
        has_changed = operation not in {"forget", "dream", "remember"} or said["touched_scopes"]
        self.task = (has_changed and said.get("task_id")) or self.task
        if operation == "export":
            return [said["entries"], _exported(file.read_bytes())]
        if operation == "edit":
            said["changed"] = said["task_id"] is not None
        return told(operation, said, IN_COMMANDS, member)

    def _carry_out_directly(self, operation, arguments):
        """Perform operations that the commands lack, so that all memories stay equal."""
        terms = {"home": self.home, "policy": self.policy, "in_process": True}
        with muniment.open(self.work, **terms) as memory:
            result = getattr(memory, operation)(**arguments)
        self.task = getattr(result, "task_id", None) or self.task
        return LACKS


IN_TOOLS = {
    ("forget", "removed_entries[].path"): "files_touched",
    ("history", "[].asked"): "steps[].task",
    ("history", "[].path"): "steps[].path",
    ("history", "[].kind"): "steps[].change",
}
"""Names of members in tool results, if they differ from the library."""


class Tools(Library):
    """The MCP tools, for the owner."""

    def asked(self, operation, arguments):
        calls = {"remember", "recall", "show", "history", "undo", "forget", "dream", "pin"}
        if operation not in calls:
            return super().asked(
                operation, arguments
            )  # Operations that it lacks are performed, so that all memories stay equal.
        given = dict(arguments)
        if operation in {"forget", "dream"}:
            given = {"description": given["query"]} if operation == "forget" else {"scope": given["scope"]}
            preview = self.tool(operation, given)
            if isinstance(preview, Failed):
                return preview
            if arguments.get("dry_run") or preview["digest"] is None:
                return [sorted(preview["paths"]) if operation == "forget" else LACKS, LACKS]
            given |= {"yes": True, "digest": preview["digest"]}
        said = self.tool(operation, given)
        if isinstance(said, Failed):
            return said
        if operation in {"forget", "dream", "undo", "pin"} or said.get("paths"):
            self.task = said.get("task_id") or self.task
        said = {"files_touched": said.get("paths", LACKS), **said}
        said.pop("text", None)  # It is between marks.
        return told(operation, said, IN_TOOLS, member)

    def tool(self, name, arguments):
        answer = with_client(
            lambda: server_of(self.memory, "owner"),
            "legacy",
            lambda client: client.call_tool(name, arguments),
        )
        if answer.is_error:
            return Failed.by(re.search(r"\[(\w+)\]", answer.content[0].text)[1])
        return answer.structured_content


def _exported(data):
    """Return the members of an exported tar, without ids and times."""
    with closing(io.BytesIO(data)) as file, tarfile.open(fileobj=file) as archive:
        found = {each.name: archive.extractfile(each).read().decode() for each in archive}
    return {name: without_ids(text) for name, text in found.items()}


SURFACES = (Library, AsyncLibrary, OverHttp, OverAsyncClient, Raw, CommandLine, Tools)


def is_same(expected, found):
    """Return whether two responses agree in the members that both have."""
    if LACKS in (found, expected):
        return True
    if isinstance(expected, tuple | list) and isinstance(found, tuple | list):
        return len(expected) == len(found) and all(map(is_same, expected, found))
    return expected == found
