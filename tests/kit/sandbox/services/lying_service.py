"""A compromised worker: it follows the protocol up to the lie that the name of the policy selects.

The broker sends the policy and checks its digest, which does not include the name: so a test can select the
lie without a feature in the product.
"""

import ctypes
import hashlib
import os
import struct

from muniment.kernel.decide import parse
from muniment.sandbox.fence.wire import Channel

EVIL = b"evil-content-51c2\n"
SHA = hashlib.sha256(b"text\n").hexdigest()
WRONG = "0" * 64


def change(path, base=None, content=EVIL):
    return {"t": "change", "path": path, "base": base}, content


def claim(path, digest=None):
    return {"t": "claim", "path": path, "digest": digest}, b""


END = ({"t": "end"}, b"")

SIMPLE = [
    *(("dotdot", "user/../outside/evil.md"), ("linked-directory", "user/linked/evil.md")),
    *(("other-scope", "team/evil.md"), ("not-canonical", "/memories/user/evil.md")),
    *(("index", "user/MEMORY.md"), ("no-markdown", "user/evil.sh"), ("alias", "user/KNOWN.md")),
    *(("file-as-directory", "user/known.md/evil.md"), ("denies-existing", "user/known.md")),
    *(("project-only", "project/evil.md"), ("surrogate", "user/evil\udcff.md")),
    ("own-words", "user/evil.md"),
]
CHANGE_SETS = {
    **{lie: [change(path)] for lie, path in SIMPLE},
    "link": [change("user/link.md", WRONG)],
    "hard-link": [change("user/hard.md", WRONG)],
    "good-then-escape": [change("user/good.md"), change("user/../evil.md")],
    "claims-escape": [change("user/good.md"), claim("user/../outside/secret.md")],
    "claims-link": [change("user/good.md"), claim("user/link.md", WRONG)],
    "twice": [change("user/evil.md"), change("user/evil.md", content=b"other\n")],
    "terminal": [change("user/evil.md", content=b"\x1b[2J\n")],
    "over-quota": [change("user/evil.md", content=b"x" * 200_000)],
    "wrong-base": [change("user/known.md", WRONG)],
    "base-of-nothing": [change("user/evil.md", SHA)],
    "wrong-claim": [change("user/evil.md"), claim("user/known.md", WRONG)],
    "claims-absence": [change("user/evil.md"), claim("user/known.md")],
    "delete": [({"t": "delete", "path": "user/known.md"}, b"")],
    "mode": [({"t": "change", "path": "user/evil.md", "base": None, "mode": 511}, EVIL)],
    "path-is-no-text": [({"t": "change", "path": 7, "base": None}, EVIL)],
    "base-is-no-digest": [change("user/evil.md", "../..")],
    "over-long-path": [change("user/" + "a" * 5000)],
    "thousand-files": [change(f"user/evil-{number}.md") for number in range(1000)],
    "over-budget": [change("user/evil.md", content=b"x" * 262_145)],
    "own-words-for-an-entry": [change("user/known.md", SHA)],
    "many-claims": [claim(f"user/a{number}.md") for number in range(20)],
}


ANSWERS = {
    "unknown-verdict": {"verdict": "commit"},
    "more-than-asked": {"commit": True},
    "escape-by-hand": {"verdict": "deny", "code": "path_escape", "via": "symlink"},
    "escape-without-via": {"verdict": "deny", "code": "path_escape"},
}
TEXTS = {"huge-text": b"x" * ((1 << 20) + 1)}


def _forever(sock):
    """Wait for data that the broker never sends; the fence allows no other way to wait."""
    while sock.recv(1):
        pass
    raise EOFError


class Liar:
    """One run."""

    def __init__(self, sock):
        self.sock, self.channel = sock, Channel(sock)
        self.channel.send({"t": "hello", "missing": {}})
        terms, body = self.channel.receive(1 << 20)
        policy = parse(body.decode(), terms["policy"])
        for _ in terms["links"]:
            self.channel.receive(1 << 20)
        self.lie = policy.name
        self.channel.send({"t": "ready", "digest": WRONG if self.lie == "wrong-digest" else policy.digest})

    def serve(self):
        while True:
            header, _ = self.channel.receive(1 << 24)
            if header["t"] == "call":
                self.answer(header["n"])
            else:
                self.changes()

    def answer(self, n):
        result = {"t": "result", "n": n, "verdict": "allow", "code": None, "rule": None, "via": None}
        if self.lie == "wrong-n":
            result["n"] = n + 1
        elif self.lie not in ANSWERS:
            self.misbehave()
        result |= ANSWERS.get(self.lie, {})
        for _ in range(2 if self.lie == "answers-twice" else 1):
            self.channel.send(result, TEXTS.get(self.lie, b"[0 in all]"))

    def misbehave(self):
        match self.lie:
            case "giant-frame":
                self.sock.sendall(struct.pack("!I", 2**31) + b"{}")
            case "silent":
                _forever(self.sock)
            case "exits":
                os._exit(0)
            case "dies":
                ctypes.string_at(0)

    def changes(self):
        match self.lie:
            case "silent-at-the-end":
                _forever(self.sock)
            case "dies-at-the-end":
                os.fork()  # the fence ends this with SIGSYS
            case "endless":
                while True:
                    self.channel.send(*change("user/evil.md", content=b"x"))
            case "bytes-in-path":
                frame = b'{"t":"change","path":"user/evil\xff.md","base":null,"body":1}'
                self.sock.sendall(struct.pack("!I", len(frame)) + frame + struct.pack("!I", 1) + b"x")
        for header, body in [*CHANGE_SETS.get(self.lie, []), END]:
            self.channel.send(header, body)


def serve(sock, roots, missing):  # noqa: ARG001
    """Lie as the name of the policy selects."""
    try:
        Liar(sock).serve()
    except EOFError:
        return
