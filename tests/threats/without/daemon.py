"""The daemon's door, its lanes and what it tells, each without what is checked there."""

from __future__ import annotations

import json
import logging

from threats.switches import Patches, control


@control()
def one_host(off: Patches) -> None:
    """A request may name any host, or none."""
    off.put("muniment.daemon.guard:Guard._check_host", lambda *_, **__: None)


@control()
def own_origin(off: Patches) -> None:
    """Pages of every origin may call the daemon."""
    off.put("muniment.daemon.guard:Guard._check_origin", lambda *_: None)


@control()
def bearer_tokens(off: Patches) -> None:
    """Whoever calls is the owner."""
    from muniment.daemon.guard import THE_OWNER

    off.put("muniment.daemon.guard:Guard._principal", lambda *_: THE_OWNER)


@control()
def json_alone(off: Patches) -> None:
    """A body is read whatever it says that it is."""

    async def read_json(request):
        return json.loads(await request.body() or b"{}")

    off.everywhere("muniment.daemon.http:read_json", read_json)


@control()
def own_tasks(off: Patches) -> None:
    """Everybody sees every task."""
    off.put("muniment.lane:Originator.sees", lambda *_: True)


@control()
def lane_caps(off: Patches) -> None:
    """Any number of tasks may wait."""
    off.put("muniment.lane:Lane._check_caps", lambda *_: None)


@control()
def body_caps(off: Patches) -> None:
    """A body may be of any size."""
    off.put("muniment.daemon.http:MAX_BODY_BYTES", 1 << 40)


@control()
def idle_lines(off: Patches) -> None:
    """No line that is idle makes room for another one."""
    off.put("muniment.daemon.guard:Protocol.idle_since", lambda _self: None)


@control()
def shares(off: Patches) -> None:
    """One client's token may have every place."""
    from muniment.daemon.contract import HttpProblem as Problem

    def take(self, token):
        if len(self) >= self.cap:
            raise Problem("busy", headers={"Retry-After": "1"})
        self._taken[token] += 1

    off.put("muniment.daemon.guard:Shares.take", take)


@control()
def registered_ids(off: Patches) -> None:
    """A client may call itself as it likes."""
    from muniment.lane import Originator

    def originator(self):
        sent = [self.request.headers.get(f"x-{name}-client-id") for name in ("qwen", "muniment")]
        return Originator(self.principal.name, sent[0] or sent[1])

    off.put("muniment.daemon.http:Call.originator", originator)


@control()
def token_trust(off: Patches) -> None:
    """A fact is trusted as its sender says."""
    off.put("muniment.names:Trust.capped", lambda self, *_: self)


@control()
def event_lines(off: Patches) -> None:
    """The text of an event is sent as it stands."""

    def frame(self, kind, number, document):
        text = json.dumps(document, ensure_ascii=False).replace("\\n", "\n").replace("\\r", "\r")
        return f"id: {self.epoch}-{number}\nevent: {kind}\ndata: {text}\n\n".encode()

    off.put("muniment.daemon.stream:Stream._frame", frame)


@control()
def repeats(off: Patches) -> None:
    """A request that comes again is another request."""
    off.put("muniment.lane:Lane._repeat_of", lambda *_: (None, None))


@control()
def redaction(off: Patches) -> None:
    """A record holds whatever it was given."""
    off.put("muniment.events:_redact", lambda _logger, _method, event: event)


@control()
def quiet_defects(off: Patches) -> None:
    """A record of a defect quotes what was raised."""
    from muniment import events

    off.everywhere(
        "muniment.events:emit_defect",
        lambda event, error, **fields: events.emit(event, problem=str(error), **fields),
    )


@control()
def foreign_logs(off: Patches) -> None:
    """What other libraries log is passed on."""
    off.put("muniment.daemon.service:_Lines.format", logging.Formatter.format)


@control()
def greetings(off: Patches) -> None:
    """A client sends its token to whoever answers."""

    async def greeted(stream, _where):
        return stream

    off.put("muniment.client.transport:_Stream.greet", lambda self, _timeout: self)
    off.put("muniment.client.transport:_greeted", greeted)


@control()
def fresh_nonces(off: Patches) -> None:
    """A client asks for the same proof each time."""
    off.put("muniment.client.transport:_nonce", lambda: "0" * 64)


@control()
def addressed_proofs(off: Patches) -> None:
    """A proof says nothing of where it was given."""
    from muniment.names import hello_proof

    def proof(key, nonce, address):  # noqa: ARG001
        return hello_proof(key, nonce, "")

    off.everywhere("muniment.names:hello_proof", proof)


@control()
def decoys(off: Patches) -> None:
    """Who asks for the proof of a token is told whether there is one."""
    from muniment.daemon.contract import HttpProblem as Problem

    def make(real):
        def proof(self, name, nonce, address, owners):
            from muniment.names import hello_key, hello_name

            rows = self._reads.rows("SELECT hello FROM token WHERE hello IS NOT NULL")
            if name not in {hello_name(key) for key in (hello_key(owners), *(key for (key,) in rows))}:
                raise Problem("not_found")
            return real(self, name, nonce, address, owners)

        return proof

    off.wrap("muniment.daemon.guard:Tokens.proof", make)


@control(hangs_after=5)
def descriptors_left(off: Patches) -> None:
    """Connections may take all descriptors, and are taken as they come."""
    off.put("muniment.daemon.guard:connections_allowed", lambda: 1 << 20)
    off.put("muniment.daemon.service:ACCEPTED_AT_ONCE", 1 << 30)


@control(hangs_after=5)
def patient_lanes(off: Patches) -> None:
    """Where a descriptor is lacking, the thread of the lane ends."""

    def make(real):
        def cancel():
            try:
                return real()
            except OSError as error:
                raise RuntimeError from error

        return cancel

    off.wrap("muniment.lane:Cancel", make)
