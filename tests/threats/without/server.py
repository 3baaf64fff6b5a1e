"""The daemon's door, its lanes and what it tells, each without what is checked there."""

import json
import logging

from threats.switches import around, control, instead, none, table, true

# fmt: off
table({
    "one_host": ("A request may name any host, or none.", {"server.guard:Guard._check_host": none}),
    "own_origin": ("Pages of every origin may call the daemon.", {"server.guard:Guard._check_origin": none}),
    "own_tasks": ("Everybody sees every task.", {"store.tasks:Originator.sees": true}),
    "lane_caps": ("Any number of tasks may wait.", {"server.lane:_check_caps": none}),
    "idle_lines": ("No line that is idle makes room for another one.", {
        "server.guard:Protocol.idle_since": none}),
    "token_trust": ("A fact is trusted as its sender says.", {
        "kernel.names:Trust.capped": lambda self, *_: self}),
    "repeats": ("A request that comes again is another request.", {
        "server.lane:Lane._repeat_of": lambda *_: (None, None)}),
    "kept_keys": ("A key is forgotten with the record of its task.", {
        "server.lane:_LAPSED": "(1 OR created <= ?)"}),
    "redaction": ("A record holds whatever it was given.", {
        "events:_redact": lambda _logger, _method, event: event}),
    "bare_spans": ("A span says whatever it was given.", {
        "events:_bare": lambda fields: [each for each in fields.items() if each[1] is not None]}),
    "foreign_logs": ("What other libraries log is passed on.", {
        "server.service:_Lines.format": logging.Formatter.format}),
    "fresh_nonces": ("A client asks for the same proof each time.", {
        "client.transport:_nonce": lambda: "0" * 64}),
})
table({
    "descriptors_left": ("Connections may take all descriptors, and are taken as they come.", {
        "server.guard:connections_allowed": lambda: 1 << 20, "server.service:ACCEPTED_AT_ONCE": 1 << 30}),
    "body_caps": ("A body may be of any size.", {"server.http:MAX_BODY_BYTES": 1 << 40}),
}, hangs_after=5)
# fmt: on


@instead("server.guard:Guard._principal")
def bearer_tokens(*_):
    """Whoever calls is the owner."""
    from muniment.server.tokens import THE_OWNER

    return THE_OWNER


@instead("*server.http:read_json")
async def json_alone(request):
    """A body is read whatever it says that it is."""
    return json.loads(await request.body() or b"{}")


@instead("server.tokens:Shares.take", hangs_after=5)
def shares(self, token):
    """One client's token may have every place."""
    from muniment.server.contract import HttpProblem as Problem

    if len(self) >= self.cap:
        raise Problem("busy", headers={"Retry-After": "1"})
    self._taken[token] += 1


@instead("server.http:Call.originator")
def registered_ids(self):
    """A client may call itself as it likes."""
    from muniment.store.tasks import Originator

    sent = [self.request.headers.get(f"x-{name}-client-id") for name in ("qwen", "muniment")]
    return Originator(self.principal.name, sent[0] or sent[1])


@instead("server.stream:Stream._frame")
def event_lines(self, kind, number, document):
    """The text of an event is sent as it stands."""
    text = json.dumps(document, ensure_ascii=False).replace("\\n", "\n").replace("\\r", "\r")
    return f"id: {self.epoch}-{number}\nevent: {kind}\ndata: {text}\n\n".encode()


@instead("*events:emit_defect")
def quiet_defects(event, error, **fields):
    """A record of a defect quotes what was raised."""
    from muniment import events

    events.emit(event, problem=str(error), **fields)


@control()
def named_collector(off):
    """What sends spans heeds proxies, redirects and a netrc."""
    import requests

    off.put("cli.traces:_session", requests.Session)


@control()
def greetings(off):
    """A client sends its token to whoever answers."""

    async def greeted(stream, _where):
        return stream

    off.put("client.transport:_Stream.greet", lambda self, _timeout: self)
    off.put("client.transport:_greeted", greeted)


@around("*names:hello_proof")
def addressed_proofs(real, key, nonce, _address):
    """A proof says nothing of where it was given."""
    return real(key, nonce, "")


@around("server.tokens:Tokens.proof")
def decoys(real, self, name, nonce, address, owners):
    """Who asks for the proof of a token is told whether there is one."""
    from muniment.names import hello_key, hello_name
    from muniment.server.contract import HttpProblem as Problem

    rows = self._reads.rows("SELECT hello FROM token WHERE hello IS NOT NULL")
    if name not in {hello_name(key) for key in (hello_key(owners), *(key for (key,) in rows))}:
        raise Problem("not_found")
    return real(self, name, nonce, address, owners)


@around("server.runner:Cancel", hangs_after=5)
def patient_lanes(real):
    """Where a descriptor is lacking, the thread of the lane ends."""
    try:
        return real()
    except OSError as error:
        raise RuntimeError from error
