"""The worker's end of the protocol: one run, one request in flight, no state beyond the run.

A message is a JSON header, followed by raw bytes if it has content (`sandbox/fence/wire.py`):

    worker → broker  hello{missing}
    broker → worker  init{policy, scopes, must_read, links, shown} + the policy
                     links + map, for each scope in `links` → ready{digest}
    broker → worker  call{n, tool} + arguments             → result{n, verdict, code, rule, via} + text
    broker → worker  changes                               → change{path, base} + content …
                                                             claim{path, digest} … end

Separate from `remote.py`, so that a worker loads nothing of the broker's end.

End of file means that the broker has finished this run. `remote.py` is the other end; it trusts no message of
a worker.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any, Final

from muniment.content.patterns import compile_word_expressions
from muniment.kernel.decide import Layer, Policy, Quota, Rule, ScopeOptions, parse
from muniment.kernel.names import RelPath, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath
from muniment.kernel.root import Root, choose_resolver
from muniment.sandbox.fence.layers import MissingLayers
from muniment.sandbox.fence.wire import Channel, ProtocolViolation
from muniment.sandbox.tools.workbench import Workbench

MAX_POLICY_BYTES: Final = 8 << 20
"""Maximum bytes of an effective policy in its normal form; the shipped `strict` has 4 000."""

MAX_MAP_BYTES: Final = 8 << 20
"""Maximum bytes of the links of one scope as JSON: the limit of `tools/links.py`, every character escaped."""

MAX_CALL_BYTES: Final = 16 << 20
"""Maximum bytes of one call's arguments as JSON: two strings of the largest size, every character escaped."""


# The patterns of the shipped policies: compiled before the fork, they need no time in a run.
_WARM_ALLOW: Final = tuple(
    f"/{scope}/{files}" for scope in ("user", "project") for files in ("**/*.md", "*.md", "*/*.md")
)
_WARM_DENY: Final = (
    *(".*", "pinned/", "MEMORY.md", "/*/index/"),
    *("AGENTS.md", "CLAUDE.md", "GEMINI.md", "QWEN.md", "SKILL.md"),
)
_WARM_POLICY: Final = Policy(
    name="warm",
    scope_options=(ScopeOptions(Scope("user"), Trust.OWNER),),
    layers=(
        Layer(
            name="warm",
            allow=(Rule("a", (Verb.CREATE, Verb.LIST, Verb.READ), _WARM_ALLOW),),
            deny=(Rule("d", (Verb.MODIFY,), _WARM_DENY),),
        ),
    ),
    quotas=(Quota("q", ("/**",)),),
)

_WARM_CALLS: Final[tuple[tuple[str, object], ...]] = (
    ("write_file", {"path": "user/é.md", "content": "---\nname: a\n---\nb\u200d\n"}),
    ("write_file", {"path": "user/b.md", "content": "every gate looks at this:\n<b ![\n"}),
    ("read_file", {"path": "user/é.md"}),
    ("read_file", {"path": 1}),
    ("read_file", {"path": "user/../x"}),
    ("grep", {"pattern": "a+b", "ignore_case": True}),
    ("grep", {"pattern": "("}),
    ("ls", {"path": "user"}),
)


def serve(sock: socket.socket, roots: Mapping[str, int], missing: MissingLayers) -> None:
    """Serve one run over `sock` until the broker closes the connection.

    Args:
        sock: a connected stream socket.
        roots: descriptors of the roots that the run may read, by scope.
        missing: missing layers of the fence, to report to the broker.

    Raises:
        ProtocolViolation: the broker broke the protocol, which only a bug can cause.
    """
    channel = Channel(sock)
    channel.send({"t": "hello", "missing": missing})
    try:
        workbench = _set_up(channel, roots)
        while True:
            _handle_message(channel, workbench)
    except EOFError:
        return


def warm() -> None:
    """Run the code that initialises itself on first use, so that forked workers need not do it."""
    workbench = Workbench(parse(_WARM_POLICY.text, "warm"), (Scope("user"),), {}, must_read=True)
    for tool, arguments in _WARM_CALLS:
        workbench.call(tool, arguments)


def warm_for_many() -> None:
    """Compile expressions that a single worker may not need. Cost: 70 ms."""
    compile_word_expressions()


def _set_up(channel: Channel, roots: Mapping[str, int]) -> Workbench:
    header, body = channel.receive(MAX_POLICY_BYTES)
    if header.get("t") != "init":
        raise ProtocolViolation("expected init")
    policy = parse(body.decode(), str(header["policy"]))
    resolver = choose_resolver()
    handles = {Scope(name): Root(Scope(name), fd, resolver) for name, fd in roots.items()}
    scopes: Any = header["scopes"]
    linked: Any = header.get("links", ())
    links = {Scope(scope): _receive_map(channel) for scope in linked}
    injected_rows: Any = header.get("shown", ())
    injected = {CanonicalPath(scope, rel): seen for scope, rel, seen in injected_rows}
    must_read = header["must_read"] is True
    workbench = Workbench(policy, scopes, handles, must_read=must_read, links=links, injected=injected)
    channel.send({"t": "ready", "digest": policy.digest})
    return workbench


def _receive_map(channel: Channel) -> dict[RelPath, str]:
    header, body = channel.receive(MAX_MAP_BYTES)
    if header.get("t") != "links":
        raise ProtocolViolation("expected links")
    links: dict[RelPath, str] = json.loads(body)
    return links


def _parse_arguments(body: bytes) -> object:
    """Return the arguments of a call, or None if they are nested too deeply. No tool accepts None."""
    try:
        arguments: object = json.loads(body)
    except RecursionError:
        return None
    return arguments


def _handle_message(channel: Channel, workbench: Workbench) -> None:
    header, body = channel.receive(MAX_CALL_BYTES)
    match header.get("t"):
        case "call":
            outcome = workbench.call(header.get("tool"), _parse_arguments(body))
            result_fields = {name: getattr(outcome, name) for name in ("verdict", "code", "rule", "via")}
            channel.send({"t": "result", "n": header.get("n"), **result_fields}, outcome.text.encode())
        case "changes":
            change_set = workbench.change_set()
            for change in change_set.changes:
                channel.send(
                    {"t": "change", "path": change.path.text, "base": change.base}, change.after or b""
                )
            for claim in change_set.claims:
                channel.send({"t": "claim", "path": claim.path.text, "digest": claim.digest})
            channel.send({"t": "end"})
        case unknown:
            raise ProtocolViolation(f"unknown message {unknown!r}")
