"""An in-memory fake of the tools, for the rule writer without worker, policy or runner."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from muniment.agent import model as protocol
from muniment.agent.model import Brief, Related, ScopeBrief
from muniment.content.entry import parse
from muniment.content.words import sayings
from muniment.kernel.names import Digest, Scope, Trust
from muniment.kernel.path import canonicalise
from muniment.names import ContextMode

BOTH = (ScopeBrief(Scope("user"), writable=True), ScopeBrief(Scope("project"), writable=True))
READING = ("read_file", "ls", "grep")
WRITING = ("write_file", "edit")
TURNS = 6


def brief(fact, scopes=BOTH, context=ContextMode.WORKSPACE):
    return Brief(fact=fact.strip(), scopes=scopes, context=context)


@dataclass
class FakeMemory:
    """Files by logical path. `stops` maps a path to the (verdict, code) that a write to it gets."""

    files: dict[str, str] = field(default_factory=dict)
    stops: dict[str, tuple[str, str]] = field(default_factory=dict)
    replaced: list[str] = field(default_factory=list)

    def call(self, tool, arguments):
        assert tool == "write_file"  # The rule writer reads nothing.
        return self._write_file(**arguments)

    def related(self):
        """Return every entry as related entries of a brief."""
        found = []
        for name, text in sorted(self.files.items()):
            entry, path = parse(text), canonicalise(name, [scope.name for scope in BOTH])
            if path.name == "MEMORY.md" or path.segments[1] == "index":
                continue
            said = frozenset() if entry.has_end else frozenset(sayings(entry.body))
            more = {"sayings": said, "is_ours": True, "is_shown": True, "type": entry.type}
            titles = {"id": "", "title": "", "body": entry.body.strip(), "age": "today"}
            found.append(Related(path=path, digest=Digest("0" * 64), trust=Trust.OWNER, **titles, **more))
        return tuple(found)

    def _write_file(self, path, content):
        if path in self.stops:
            return *self.stops[path], "stopped"
        self.replaced += [self.files[path]] if path in self.files else []
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
    """Run `model` like the agent loop: six turns, the sixth without tools."""
    messages = [protocol.SystemMessage("system"), protocol.UserMessage("job")]
    calls = []
    if the_brief.context is not ContextMode.CLEAN:
        the_brief = replace(the_brief, related=memory.related())
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
            verdict, code, text = memory.call(call.tool, call.arguments)
            messages.append(protocol.ToolMessage(call.id, verdict, code, text))
    raise AssertionError("the model used all six turns without a final text")
