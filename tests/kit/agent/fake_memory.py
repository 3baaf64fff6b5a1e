"""An in-memory fake of the tools: what the rule writer meets, without worker, policy or runner."""

from __future__ import annotations

from dataclasses import dataclass, field

import re2

from muniment.agent import model as protocol
from muniment.agent.model import Brief, ScopeBrief
from muniment.kernel.names import Scope
from muniment.names import ContextMode

BOTH = (ScopeBrief(Scope("user"), writable=True), ScopeBrief(Scope("project"), writable=True))
READING = ("read_file", "ls", "grep")
WRITING = ("write_file", "edit")
TURNS = 6


def brief(fact, scopes=BOTH, context=ContextMode.WORKSPACE):
    return Brief(fact=fact.strip(), scopes=scopes, context=context)


@dataclass
class FakeMemory:
    """Files by logical path. `stops` maps a written path to (verdict, code) that it gets instead, `answers` a
    tool to the text that it answers with, whatever it is asked."""

    files: dict[str, str] = field(default_factory=dict)
    stops: dict[str, tuple[str, str]] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)

    def call(self, tool, arguments, read):
        if tool in self.answers:
            return "allow", None, self.answers[tool]
        seen = {"read": read} if tool in {"read_file", "write_file"} else {}
        return getattr(self, f"_{tool}")(**seen, **arguments)

    def _grep(self, pattern, path, ignore_case, max_matches):
        assert (len(pattern) <= 1000, path) == (True, "")
        options = re2.Options()
        options.case_sensitive, options.log_errors, options.never_nl = not ignore_case, False, True
        whole_lines = re2.compile(f"(?m)^.*?(?:{pattern}).*$", options)
        named = sorted(self.files.items())
        lines = [(name, n, line) for name, text in named for n, line in enumerate(text.split("\n"), 1)]
        searched = "\n".join(line for _, _, line in lines)
        shown, number, counted_to = [], 0, 0
        for match in whole_lines.finditer(searched):
            number += searched.count("\n", counted_to, match.start())
            counted_to = match.start()
            name, line_number, line = lines[number]
            shown.append(f"{name}:{line_number}: {line if len(line) <= 200 else line[:200] + chr(0x2026)}")
        return "allow", None, "\n".join(shown[:max_matches]) or "no matches"

    def _read_file(self, path, read, offset=0, limit=400):
        if path not in self.files:
            return "error", "not_found", "no such file"
        read.add(path)
        lines = self.files[path].split("\n")[offset : offset + limit]
        numbered = [f"{number}\t{line}" for number, line in enumerate(lines, offset + 1)]
        return "allow", None, "\n".join([*numbered, "[truncated: 999 lines in all]"])

    def _ls(self, path):
        below = [name[len(path) + 1 :] for name in self.files if name.startswith(path + "/")]
        if not below:
            return "error", "not_found", "no such directory"
        lines = sorted({f"{name.split('/')[0]}/" if "/" in name else f"{name} (9 bytes)" for name in below})
        return "allow", None, "\n".join([*lines, f"[{len(lines)} in all]"])

    def _write_file(self, path, content, read):
        if path in self.stops:
            return *self.stops[path], "stopped"
        if path in self.files:
            if path not in read:
                return "error", "not_read", "exists"
            raise AssertionError(f"{path} would have been replaced")
        self.files[path] = content
        return "allow", None, f"created {path}"


@dataclass
class Run:
    text: str
    turns: int
    calls: list

    @property
    def written(self):
        return [call.arguments["path"] for call in self.calls if call.tool == "write_file"]


def run(model, the_brief, memory):
    """Drive `model` as the loop does: six turns, the sixth without tools."""
    messages = [protocol.SystemMessage("system"), protocol.UserMessage("job")]
    calls, read = [], set()
    offered = WRITING if the_brief.context is ContextMode.CLEAN else READING + WRITING
    for turn in range(1, TURNS + 1):
        names = offered if turn < TURNS else ()
        tools = tuple(protocol.ToolSpec(name, "", {}) for name in names)
        reply = model.respond(protocol.ModelRequest(the_brief, tuple(messages), tools, 100.0))
        messages.append(protocol.AssistantMessage(reply.text, reply.calls))
        if not reply.calls:
            return Run(reply.text, turn, calls)
        for call in reply.calls:
            assert call.tool in names
            assert call.id not in {each.id for each in calls}
            calls.append(call)
            verdict, code, text = memory.call(call.tool, call.arguments, read)
            messages.append(protocol.ToolMessage(call.id, verdict, code, text))
    raise AssertionError("the model used its six turns up without ending in words")
