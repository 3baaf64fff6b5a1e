"""The messages of a run in each form, written down by hand, and a memory in a dict to run against."""

from __future__ import annotations

import json

TOKEN = "5d1c0ffee5d1c0ff"
TOOLS = ("read_file", "grep", "ls", "write_file", "edit")
FORMS = ("tools", "action", "action in text")


def fenced(kind, text, token=TOKEN):
    return f"<<{kind} {token}>>\n{text}\n<<end {token}>>"


def job(fact, *, index="", scopes="user, project"):
    shown = f"\n\nIndex of user (trust: agent):\n{fenced('memory', index)}" if index else ""
    return f"Scopes of this run: {scopes}.{shown}\n\nThe fact to remember:\n{fenced('fact', fact)}"


def actions(offered):
    """The schema of an action, and its description in a prompt."""
    named = [{"action": {"type": "string", "enum": [tool]}} for tool in (*offered, "done")]
    listed = "".join(f"{tool} (path): does something.\n" for tool in offered)
    prompt = f'Each answer is one JSON object with the key "action".\n{listed}done (summary).'
    return {"anyOf": [{"type": "object", "properties": each} for each in named]}, prompt


class Run:
    """A run of one fact over a memory, as the body of each request shows it to a model."""

    def __init__(self, form, fact, memory=None, offered=TOOLS, **of_job):
        self.form, self.offered, self.memory = form, offered, dict(memory or {})
        self._job = job(fact, **of_job)
        self.turns = []
        self.refuses_writes = False

    def body(self):
        """The body of the next request."""
        schema, prompt = actions(self.offered)
        messages = [{"role": "user", "content": self._job}]
        system = "You file memory." if self.form == "tools" else f"You file memory.\n\n{prompt}"
        for turn in self.turns:
            messages += self._messages(*turn)
        if self.form == "action in text":
            messages[0]["content"] = f"{system}\n\n{messages[0]['content']}"
            return {"messages": messages}
        messages.insert(0, {"role": "system", "content": system})
        if self.form == "tools":
            tools = [{"type": "function", "function": {"name": tool}} for tool in self.offered]
            return {"messages": messages, **({"tools": tools} if tools else {})}
        form = {"type": "json_schema", "json_schema": {"name": "action", "schema": schema}}
        return {"messages": messages, "response_format": form}

    def make(self, calls):
        """Carry out the calls of a turn."""
        if self.form != "tools":
            calls = calls[:1]
        self.turns.append((calls, [getattr(self, f"_{tool}")(**arguments) for tool, arguments in calls]))

    def _messages(self, calls, results):
        if self.form != "tools":
            each = zip(calls, results, strict=True)
            told = "\n\n".join(f"{tool}:\n{fenced('result', result)}" for (tool, _), result in each)
            said = "\n".join(json.dumps({**arguments, "action": tool}) for tool, arguments in calls)
            return [{"role": "assistant", "content": said}, {"role": "user", "content": told}]
        ids = [f"t{self.turns.index((calls, results))}-{number}" for number in range(len(calls))]
        functions = [{"name": tool, "arguments": json.dumps(arguments)} for tool, arguments in calls]
        paired = zip(ids, functions, strict=True)
        asked = [{"id": each, "type": "function", "function": function} for each, function in paired]
        answers = [
            {"role": "tool", "tool_call_id": each, "content": result}
            for each, result in zip(ids, results, strict=True)
        ]
        return [{"role": "assistant", "content": "", "tool_calls": asked}, *answers]

    def _grep(self, pattern, path=""):
        hits = [
            f"{name}:{number}: {line[:200]}{'…' if len(line) > 200 else ''}"
            for name, text in self.memory.items()
            for number, line in enumerate(text.split("\n"), 1)
            if pattern.replace("\\", "") in line and name.startswith(path)
        ]
        return "\n".join(hits) or "no matches"

    def _read_file(self, path):
        lines = self.memory[path].removesuffix("\n").split("\n")
        return "\n".join(f"{number}\t{line}" for number, line in enumerate(lines, 1))

    def _write_file(self, path, content):
        if self.refuses_writes:
            return "a write is refused here"
        self.memory[path] = content
        return f"created {path} ({len(content.encode())} bytes)"
