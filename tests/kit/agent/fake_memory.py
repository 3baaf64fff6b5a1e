"""An in-memory fake of the tools, for the rule writer without worker, policy or runner."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from muniment.agent import model as protocol
from muniment.agent.model import Brief, RelatedEntry, ScopeBrief
from muniment.content.entry import parse
from muniment.content.words import list_statements
from muniment.kernel.names import Digest, Scope, Trust
from muniment.kernel.path import canonicalise
from muniment.names import ContextMode

BOTH_SCOPES = (ScopeBrief(Scope("user"), writable=True), ScopeBrief(Scope("project"), writable=True))
READ_TOOLS = ("read_file", "ls", "grep")
WRITE_TOOLS = ("write_file", "edit")
TURNS = 6


def make_brief(fact, scopes=BOTH_SCOPES, context=ContextMode.WORKSPACE):
    return Brief(fact=fact.strip(), scopes=scopes, context=context)


@dataclass
class FakeMemory:
    """Files by logical path. `denials` maps a path to the (verdict, code) that a write to it gets."""

    files: dict[str, str] = field(default_factory=dict)
    denials: dict[str, tuple[str, str]] = field(default_factory=dict)
    replaced: list[str] = field(default_factory=list)

    def call(self, tool, arguments):
        assert tool == "write_file"  # The rule writer reads nothing.
        return self._write_file(**arguments)

    def list_related(self):
        """Return every entry as related entries of a brief."""
        found = []
        for name, text in sorted(self.files.items()):
            entry, path = parse(text), canonicalise(name, [scope.name for scope in BOTH_SCOPES])
            if path.name == "MEMORY.md" or path.segments[1] == "index":
                continue
            statements = frozenset() if entry.has_end_date else frozenset(list_statements(entry.body))
            more = {"statements": statements, "is_replaceable": True, "is_visible": True, "type": entry.type}
            titles = {"id": "", "title": "", "body": entry.body.strip(), "age": "today"}
            found.append(
                RelatedEntry(path=path, digest=Digest("0" * 64), trust=Trust.OWNER, **titles, **more)
            )
        return tuple(found)

    def _write_file(self, path, content):
        if path in self.denials:
            return *self.denials[path], "stopped"
        self.replaced += [self.files[path]] if path in self.files else []
        self.files[path] = content
        return "allow", None, f"created {path}"


@dataclass
class Run:
    text: str
    turns: int
    calls: list

    @property
    def written_paths(self):
        return [call.arguments["path"] for call in self.calls if call.tool == "write_file"]


def run_model(model, brief, memory):
    """Run `model` like the agent loop: six turns, the sixth without tools."""
    messages = [protocol.SystemMessage("system"), protocol.UserMessage("job")]
    calls = []
    if brief.context is not ContextMode.CLEAN:
        brief = replace(brief, related=memory.list_related())
    tool_names = WRITE_TOOLS if brief.context is ContextMode.CLEAN else READ_TOOLS + WRITE_TOOLS
    for turn in range(1, TURNS + 1):
        names = tool_names if turn < TURNS else ()
        tools = tuple(protocol.ToolSpec(name, "", {}) for name in names)
        reply = model.respond(protocol.ModelRequest(brief, tuple(messages), tools, 100.0))
        messages.append(protocol.AssistantMessage(reply.text, reply.calls))
        if not reply.calls:
            return Run(reply.text, turn, calls)
        for call in reply.calls:
            assert call.tool in names
            assert call.id not in {each.id for each in calls}
            calls.append(call)
            verdict, code, text = memory.call(call.tool, call.arguments)
            messages.append(protocol.ToolMessage(call.id, verdict, code, text))
    raise AssertionError("the model used all six turns without a final text")
