"""The daemon's access checks, lanes and outputs, each without its control."""

import json
import logging

from threats.switches import around, control, instead, none, table, true

# fmt: off
table({
    "one_host": ("Accept any or no Host header.", {"server.guard:Guard._check_host": none}),
    "own_origin": ("Accept pages of every origin.", {"server.guard:Guard._check_origin": none}),
    "own_tasks": ("Show every task to every client.", {"store.tasks:Originator.sees": true}),
    "lane_caps": ("Queue any number of tasks.", {"server.lane:_check_caps": none}),
    "idle_lines": ("Keep idle connections when slots are needed.", {
        "server.guard:Protocol.idle_since": none}),
    "token_trust": ("Use the trust that the sender claims.", {
        "kernel.names:Trust.capped": lambda self, *_: self}),
    "repeats": ("Treat a repeated request as a new one.", {
        "server.lane:Lane._repeat_of": lambda *_: (None, None)}),
    "kept_keys": ("Delete an idempotency key with the record of its task.", {
        "server.lane:_LAPSED": "(1 OR created <= ?)"}),
    "redaction": ("Write log records unfiltered.", {
        "events:_redact": lambda _logger, _method, event: event}),
    "bare_spans": ("Write span attributes unfiltered.", {
        "events:_bare": lambda fields: [each for each in fields.items() if each[1] is not None]}),
    "foreign_logs": ("Log the messages of other libraries.", {
        "server.service:_Lines.format": logging.Formatter.format}),
    "fresh_nonces": ("Use the same nonce for each proof.", {
        "client.transport:_nonce": lambda: "0" * 64}),
})
table({
    "descriptors_left": ("Accept connections without a limit.", {
        "server.guard:connections_allowed": lambda: 1 << 20, "server.service:ACCEPTED_AT_ONCE": 1 << 30}),
    "body_caps": ("Accept bodies of any size.", {"server.http:MAX_BODY_BYTES": 1 << 40}),
}, hangs_after=5)
# fmt: on


@instead("server.guard:Guard._principal")
def bearer_tokens(*_):
    """Treat every caller as the owner."""
    from muniment.server.tokens import THE_OWNER

    return THE_OWNER


@instead("*server.http:read_json")
async def json_alone(request):
    """Read bodies of every content type."""
    return json.loads(await request.body() or b"{}")


@instead("server.tokens:Shares.take", hangs_after=5)
def shares(self, token):
    """Let one client token use every slot."""
    from muniment.server.contract import HttpProblem as Problem

    if len(self) >= self.cap:
        raise Problem("busy", headers={"Retry-After": "1"})
    self._taken[token] += 1


@instead("server.http:Call.originator")
def registered_ids(self):
    """Accept any client id."""
    from muniment.store.tasks import Originator

    sent = [self.request.headers.get(f"x-{name}-client-id") for name in ("qwen", "muniment")]
    return Originator(self.principal.name, sent[0] or sent[1])


@instead("server.stream:Stream._frame")
def event_lines(self, kind, number, document):
    """Send the text of an event unescaped."""
    text = json.dumps(document, ensure_ascii=False).replace("\\n", "\n").replace("\\r", "\r")
    return f"id: {self.epoch}-{number}\nevent: {kind}\ndata: {text}\n\n".encode()


@instead("*events:emit_defect")
def quiet_defects(event, error, **fields):
    """Log the message of an internal error."""
    from muniment import events

    events.emit(event, problem=str(error), **fields)


@control()
def named_collector(off):
    """Use proxies, redirects and a netrc to send spans."""
    import requests

    off.put("cli.traces:_session", requests.Session)


@control()
def greetings(off):
    """Send the token to any server."""

    async def greeted(stream, _where):
        return stream

    off.put("client.transport:_Stream.greet", lambda self, _timeout: self)
    off.put("client.transport:_greeted", greeted)


@around("*names:hello_proof")
def addressed_proofs(real, key, nonce, _address):
    """Omit the address from a proof."""
    return real(key, nonce, "")


@around("server.tokens:Tokens.proof")
def decoys(real, self, name, nonce, address, owners):
    """Reveal whether a token exists in the response to a challenge."""
    from muniment.names import hello_key, hello_name
    from muniment.server.contract import HttpProblem as Problem

    rows = self._reads.rows("SELECT hello FROM token WHERE hello IS NOT NULL")
    if name not in {hello_name(key) for key in (hello_key(owners), *(key for (key,) in rows))}:
        raise Problem("not_found")
    return real(self, name, nonce, address, owners)


@around("server.runner:Cancel", hangs_after=5)
def patient_lanes(real):
    """End the thread of the lane if no descriptor is left."""
    try:
        return real()
    except OSError as error:
        raise RuntimeError from error
