"""All surfaces with one method, each over a new memory: `surface.call("edit", path=…, text=…)`.

The response contains the members that all surfaces have in common. It is `FailedOperation` with the error
code, or `LACKS` if the surface does not have the operation, see `muniment.operations.table`.
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
from kit.cli.commands import run_in_process
from kit.mcp import make_server, run_with_client
from kit.server.process import BASE, write_policy
from kit.server.raw import start_local_daemon
from muniment.client import AsyncClient, Client
from muniment.client.errors import ClientError
from muniment.errors import CODES, MunimentError
from muniment.types.documents import convert_to_camel_case

LACKS = "lacks"


@dataclass(frozen=True)
class FailedOperation:
    """A failed operation.

    Attributes:
        code: the error code of HTTP; codes that responses of HTTP do not have become `refused`.
    """

    code: str

    @classmethod
    def from_code(cls, code):
        """Create one from the error code of a surface."""
        same = {"invalid_query": "invalid_content", "nothing_to_erase": "not_found"}
        return cls(same.get(code) or (code in CODES and CODES[code].response_code) or code)


_IDS = re.compile(
    r"[a-z]+-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?:[a-z]+-)?[0-9A-HJKMNP-TV-Z]{26}|"
    r"\d{4}-\d\d-\d\d(?:T[\d:.]+Z)?"
)


def replace_ids(text):
    """Replace ids of tasks and entries, and times."""
    return _IDS.sub("~", text)


def read_files(home):
    """Return the entries and indexes of a home, by path; without ids, which differ between surfaces."""
    found = sorted(path for path in home.rglob("*.md") if "state" not in path.relative_to(home).parts)
    return {
        re.sub(r"projects/[^/]+", "projects", str(path.relative_to(home))): replace_ids(path.read_text())
        for path in found
    }


COMPARED_MEMBERS = {
    "remember": ("files_touched", "trust", "status"),
    "forget": ("removed_entries[].path", "status"),
    "dream": ("touched_scopes", "status"),
    "recall": ("entries[].path",),
    "standing_context": ("entries[].path",),
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


def select_members(operation, value, names, get):
    """Return the compared members of a result.

    Args:
        operation: its name.
        value: the result of a surface.
        names: names of members on this surface, by operation and member, if they differ.
        get: returns a member of a value by name, or `LACKS`.
    """
    found = []
    for member in COMPARED_MEMBERS[operation]:
        list_member, _, name = names.get((operation, member), member).rpartition("[].")
        if "[]." not in names.get((operation, member), member):
            found.append(_normalize(get(value, name)))
        else:
            items = get(value, list_member) if list_member else value
            found.append(LACKS if items == LACKS else [_normalize(get(each, name)) for each in items])
    return found


def _normalize(value):
    if isinstance(value, tuple | list):
        return sorted(map(str, value))
    return value if value is None or isinstance(value, bool | int) else str(value)


def get_attribute(value, name):
    return getattr(value, name, LACKS)


def get_without_status(value, name):
    return LACKS if name == "status" else get_attribute(value, name)


def get_member(value, name):
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
        self.stack = ExitStack()

    def call(self, operation, **arguments):
        """Call an operation."""
        if operation == "undo":
            arguments["task_id"] = self.task
        try:
            return self.perform(operation, arguments)
        except (MunimentError, ClientError) as error:
            return FailedOperation.from_code(error.code)

    def close(self):
        self.stack.close()


class Library(Surface):
    """`Memory`."""

    def __init__(self, base):
        super().__init__(base)
        policy = write_policy(base, require='"none"')
        self.memory = self.stack.enter_context(
            muniment.open(self.work, home=self.home, policy=policy, in_process=True)
        )

    def perform(self, operation, arguments):
        if operation == "export":
            file = io.BytesIO()
            return [self.execute("export", {"file": file}).entries, _read_export(file.getvalue())]
        result = self.execute(operation, arguments)
        self.task = getattr(result, "task_id", None) or self.task
        return select_members(operation, result, {}, get_attribute)

    def execute(self, operation, arguments):
        return getattr(self.memory, operation)(**arguments)


class AsyncLibrary(Library):
    """`AsyncMemory`."""

    def execute(self, operation, arguments):
        async def run():
            memory = muniment.AsyncMemory(self.memory)
            return await getattr(memory, operation)(**arguments)

        return asyncio.run(run())


class OverHttp(Surface):
    """`Client`, over a daemon."""

    def __init__(self, base):
        super().__init__(base)
        self.daemon = self.stack.enter_context(start_local_daemon(base))
        address = {"url": self.daemon.url, "token": self.daemon.token, "workspace": self.work}
        self.address, self.client = address, self.stack.enter_context(Client(**address))

    def perform(self, operation, arguments):
        if operation == "export":
            file = io.BytesIO()
            return [self.execute("export", {"file": file}).entries, _read_export(file.getvalue())]
        result = self.execute(operation, arguments)
        if operation in {"remember", "forget", "dream"}:
            is_dry = arguments.get("dry_run")  # The document of a preview has no status.
            return select_members(operation, result, {}, get_attribute if not is_dry else get_without_status)
        self.task = getattr(result, "task_id", None) or self.task
        return select_members(operation, result, {}, get_attribute)

    def execute(self, operation, arguments):
        result = getattr(self.client, operation)(**arguments)
        if operation in {"remember", "forget", "dream"}:
            ended = result.wait(60)
            self.task = result.task_id if ended.touched_scopes else self.task
            return ended
        return result


class OverAsyncClient(OverHttp):
    """`AsyncClient`, over a daemon."""

    def execute(self, operation, arguments):
        async def run():
            async with AsyncClient(**self.address) as client:
                result = await getattr(client, operation)(**arguments)
                if operation in {"remember", "forget", "dream"}:
                    ended = await result.wait(60)
                    self.task = result.task_id if ended.touched_scopes else self.task
                    return ended
                return result

        return asyncio.run(run())


IN_HTTP = {
    ("forget", "removed_entries[].path"): "removed_entries[].file_path",
    **{("history", each): f"steps{each}" for each in COMPARED_MEMBERS["history"]},
    ("reviews", "[].kind"): "reviews[].kind",
}
"""Names of members in HTTP documents, if they differ from the library."""

GETS = {
    "standing_context": "context",
    "list": "entries",
    "show": "entry",
    "history": "history",
    "why": "why",
    "reviews": "review",
}


class Raw(OverHttp):
    """Raw HTTP requests and their documents."""

    def perform(self, operation, arguments):
        names = {"dry_run": "dryRun", "task_id": "taskId"}
        body = {names.get(name, name): value for name, value in arguments.items()}
        # A query cannot contain null.
        query = {name: value for name, value in body.items() if value is not None}
        if operation in {"remember", "forget", "dream"}:
            accepted = self.daemon.post(f"{BASE}/{operation}", body)
            if accepted.status_code != 202:
                return FailedOperation.from_code(accepted.json()["code"])
            done = self.daemon.wait_for_task(accepted.json()["taskId"])
            if done["status"] != "completed":
                return FailedOperation.from_code(done["error"]["code"])
            self.task = done["taskId"] if done["result"]["touchedScopes"] else self.task
            return self.select_from_document(operation, done["result"])
        if operation == "explain":
            answer = self.daemon.get(f"{BASE}/policy/explain?{urlencode(query)}")
        elif operation in {*GETS, "export"}:
            answer = self.daemon.get(f"{BASE}/{GETS.get(operation, operation)}?{urlencode(query)}")
        else:
            answer = self.daemon.post(f"{BASE}/{operation}", body)
        if answer.status_code != 200:
            return FailedOperation.from_code(answer.json()["code"])
        if operation == "export":
            return [json.loads(answer.headers["x-muniment-export"])["entries"], _read_export(answer.content)]
        document = answer.json()
        self.task = document.get("taskId") or self.task
        return self.select_from_document(operation, document)

    def select_from_document(self, operation, document):
        default = {"status": LACKS}
        return select_members(
            operation,
            document,
            IN_HTTP,
            lambda value, name: value.get(convert_to_camel_case(name), default.get(name)),
        )


EDITOR = """import pathlib, sys
file = pathlib.Path(sys.argv[2])
text = file.read_text()
end = text.index("---\\n", 4) + 4 if text.startswith("---\\n") else 0
file.write_text(text[:end] + pathlib.Path(sys.argv[1]).read_text())
"""


IN_COMMANDS = {
    ("list", "entries[].title"): "entries[].name",
    ("undo", "files_touched"): "changes[].path",
    **{("history", each): f"steps{each}" for each in COMPARED_MEMBERS["history"]},
    ("reviews", "[].kind"): "reviews[].kind",
}
"""Names of members in documents of commands, if they differ from the library."""


def _format_yes(arguments):
    return [] if arguments["dry_run"] else ["--yes"]


def _format_scope(arguments):
    return [f"--scope={arguments['scope']}"] if arguments.get("scope") else []


def _format_limit(arguments):
    return [f"--limit={arguments['limit']}"] if arguments.get("limit") else []


COMMANDS = {
    "remember": lambda asked, _task, _file: ["remember", *_format_scope(asked), "--", asked["content"]],
    "forget": lambda asked, _task, _file: [
        "forget",
        *_format_scope(asked),
        *_format_yes(asked),
        "--",
        asked["query"],
    ],
    "dream": lambda asked, _task, _file: ["dream", *_format_scope(asked), *_format_yes(asked)],
    "recall": lambda asked, _task, _file: ["recall", *_format_limit(asked), "--", asked["query"]],
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
    "erase": lambda asked, _task, _file: ["erase", asked["target"], *_format_yes(asked)],
}
"""The command of an operation, from its arguments, the newest task, and the file of an export."""


class CommandLine(Surface):
    """Commands with `--json`."""

    def __init__(self, base):
        super().__init__(base)
        self.policy = write_policy(base, require='"none"')
        (base / "editor.py").write_text(EDITOR)

    def perform(self, operation, arguments):
        if operation == "edit" and not arguments["dry_run"]:
            (self.base / "text").write_text(arguments["text"])
        if operation not in COMMANDS or (operation == "edit" and arguments["dry_run"]):
            return self._execute_in_library(operation, arguments)
        file = self.base / "export.tar"
        file.unlink(missing_ok=True)
        command = COMMANDS[operation](arguments, self.task, file)
        at = command.index("--") if "--" in command else len(command)
        command[at:at] = ["--json", f"--policy={self.policy}", f"--workspace={self.work}"]
        editor = f"{sys.executable} {self.base / 'editor.py'} {self.base / 'text'}"
        done = run_in_process(command, {"MUNIMENT_HOME": str(self.home), "VISUAL": editor}, None)
        if done.exit_code:
            code = json.loads(done.stdout)["error"]["code"]
            is_path = operation == "list" and code == "refused"  # `ls` accepts a path, not only a scope.
            return FailedOperation.from_code("invalid_scope" if is_path else code)
        document = json.loads(done.stdout)
        has_changed = operation not in {"forget", "dream", "remember"} or document["touched_scopes"]
        self.task = (has_changed and document.get("task_id")) or self.task
        if operation == "export":
            return [document["entries"], _read_export(file.read_bytes())]
        if operation == "edit":
            document["changed"] = document["task_id"] is not None
        return select_members(operation, document, IN_COMMANDS, get_member)

    def _execute_in_library(self, operation, arguments):
        """Perform operations that the commands lack, so that all memories stay equal."""
        options = {"home": self.home, "policy": self.policy, "in_process": True}
        with muniment.open(self.work, **options) as memory:
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

    def perform(self, operation, arguments):
        calls = {"remember", "recall", "show", "history", "undo", "forget", "dream", "pin"}
        if operation == "standing_context":  # Its response has only the text.
            content = self.tool("context", {})
            assert content["text"].startswith("## Memory")
            return LACKS
        if operation not in calls:
            return super().perform(
                operation, arguments
            )  # Operations that it lacks are performed, so that all memories stay equal.
        tool_arguments = dict(arguments)
        if operation in {"forget", "dream"}:
            tool_arguments = (
                {"description": tool_arguments["query"]}
                if operation == "forget"
                else {"scope": tool_arguments["scope"]}
            )
            preview = self.tool(operation, tool_arguments)
            if isinstance(preview, FailedOperation):
                return preview
            if arguments.get("dry_run") or preview["digest"] is None:
                return [sorted(preview["paths"]) if operation == "forget" else LACKS, LACKS]
            tool_arguments |= {"yes": True, "digest": preview["digest"]}
        content = self.tool(operation, tool_arguments)
        if isinstance(content, FailedOperation):
            return content
        if operation in {"forget", "dream", "undo", "pin"} or content.get("paths"):
            self.task = content.get("task_id") or self.task
        content = {"files_touched": content.get("paths", LACKS), **content}
        content.pop("text", None)  # It is between marks.
        return select_members(operation, content, IN_TOOLS, get_member)

    def tool(self, name, arguments):
        answer = run_with_client(
            lambda: make_server(self.memory, "owner"),
            "legacy",
            lambda client: client.call_tool(name, arguments),
        )
        if answer.is_error:
            return FailedOperation.from_code(re.search(r"\[(\w+)\]", answer.content[0].text)[1])
        return answer.structured_content


def _read_export(data):
    """Return the members of an exported tar, without ids and times."""
    with closing(io.BytesIO(data)) as file, tarfile.open(fileobj=file) as archive:
        found = {each.name: archive.extractfile(each).read().decode() for each in archive}
    return {name: replace_ids(text) for name, text in found.items()}


SURFACES = (Library, AsyncLibrary, OverHttp, OverAsyncClient, Raw, CommandLine, Tools)


def is_equivalent(expected, found):
    """Return whether two responses agree in the members that both have."""
    if LACKS in (found, expected):
        return True
    if isinstance(expected, tuple | list) and isinstance(found, tuple | list):
        return len(expected) == len(found) and all(map(is_equivalent, expected, found))
    return expected == found
