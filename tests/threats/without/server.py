"""Switch off the checks of the daemon: its HTTP interface, its lanes and its logs."""

import json
import logging

from threats.switches import add_controls, control, do_nothing, replace_target, return_true, wrap_target

# fmt: off
add_controls({
    "one_host": ("A request may name any host, or none.", {"server.guard:Guard._check_host": do_nothing}),
    "own_origin": ("Pages of every origin may call the daemon.", {
        "server.guard:Guard._check_origin": do_nothing}),
    "own_tasks": ("Every client sees every task.", {"store.tasks:Originator.can_see": return_true}),
    "lane_caps": ("Any number of tasks may wait.", {"server.lane:_check_caps": do_nothing}),
    "idle_lines": ("An idle connection is never closed for a new one.", {
        "server.guard:Protocol.get_idle_since": do_nothing}),
    "token_trust": ("A fact has the trust that its sender claims.", {
        "kernel.names:Trust.cap": lambda self, *_: self}),
    "repeats": ("A repeated request creates another task.", {
        "server.lane:Lane._digest_request": lambda *_: (None, None)}),
    "kept_keys": ("A key is deleted with the record of its task.", {
        "server.lane:_IS_KEY_EXPIRED": "(1 OR created <= ?)"}),
    "redaction": ("Log events are not redacted.", {
        "events:_redact": lambda _logger, _method, event: event}),
    "bare_spans": ("A span contains all given attributes.", {
        "events:_filter_attributes":
            lambda fields: [each for each in fields.items() if each[1] is not None]}),
    "foreign_logs": ("Log messages of other libraries are passed on.", {
        "server.service:_JsonFormatter.format": logging.Formatter.format}),
    "fresh_nonces": ("A client always sends the same nonce.", {
        "client.transport:_create_nonce": lambda: "0" * 64}),
})
add_controls({
    "descriptors_left": ("Connections may use all descriptors, and are accepted without a limit.", {
        "server.guard:compute_max_connections": lambda: 1 << 20, "server.service:ACCEPTED_AT_ONCE": 1 << 30}),
    "body_caps": ("A body may have any size.", {"server.http:MAX_BODY_BYTES": 1 << 40}),
}, hangs_after=5)
# fmt: on


@replace_target("server.guard:Guard._authenticate")
def bearer_tokens(*_):
    """Every caller is the owner."""
    from muniment.server.tokens import OWNER_PRINCIPAL

    return OWNER_PRINCIPAL


@replace_target("*server.http:read_json")
async def json_alone(request):
    """A body is read with any content type."""
    return json.loads(await request.body() or b"{}")


@replace_target("server.tokens:SlotShares.acquire", hangs_after=5)
def shares(self, token):
    """One client's token may use every connection slot."""
    from muniment.server.contract import HttpProblem as Problem

    if len(self) >= self.cap:
        raise Problem("busy", headers={"Retry-After": "1"})
    self._used[token] += 1


@replace_target("server.http:Call.find_originator")
def registered_ids(self):
    """A client may choose any client id."""
    from muniment.store.tasks import Originator

    sent = [self.request.headers.get(f"x-{name}-client-id") for name in ("qwen", "muniment")]
    return Originator(self.principal.name, sent[0] or sent[1])


@replace_target("server.stream:Stream._format_frame")
def event_lines(self, kind, number, document):
    """The text of an event is sent unescaped."""
    text = json.dumps(document, ensure_ascii=False).replace("\\n", "\n").replace("\\r", "\r")
    return f"id: {self.epoch}-{number}\nevent: {kind}\ndata: {text}\n\n".encode()


@replace_target("*events:emit_defect")
def quiet_defects(event, error, **fields):
    """The log event of a defect quotes the error."""
    from muniment import events

    events.emit(event, problem=str(error), **fields)


@control()
def named_collector(off):
    """The span exporter uses proxies, redirects and a netrc file."""
    import requests

    off.put("cli.traces:_create_session", requests.Session)


@control()
def server_proofs(off):
    """A client sends its token to any server."""

    async def skip_proof(stream, _where):
        return stream

    off.put("client.transport:_Stream.verify_server", lambda self, _timeout: self)
    off.put("client.transport:_verify_stream", skip_proof)


@wrap_target("*names:compute_hello_proof")
def addressed_proofs(real, key, nonce, _address):
    """A proof does not depend on the address."""
    return real(key, nonce, "")


@wrap_target("server.tokens:Tokens.create_proof")
def decoys(real, self, name, nonce, address, owners):
    """A proof request reveals whether a token exists."""
    from muniment.names import derive_hello_key, derive_hello_name
    from muniment.server.contract import HttpProblem as Problem

    rows = self._reads.rows("SELECT hello FROM token WHERE hello IS NOT NULL")
    if name not in {derive_hello_name(key) for key in (derive_hello_key(owners), *(key for (key,) in rows))}:
        raise Problem("not_found")
    return real(self, name, nonce, address, owners)


@wrap_target("server.runner:Cancel", hangs_after=5)
def patient_lanes(real):
    """Without a free descriptor, the thread of the lane ends."""
    try:
        return real()
    except OSError as error:
        raise RuntimeError from error
