"""What is said, without what keeps secrets out of it."""

from __future__ import annotations

from pathlib import Path

from threats.switches import Patches, control


@control()
def bare_records(off: Patches) -> None:
    """A record holds the whole result."""

    def make(real):
        def log(result):
            from muniment import events

            real(result)
            events.emit("remember_result", result=str(result.as_json()), error=repr(result.error))

        return log

    off.wrap("muniment.jobs.remember:_log", make)


@control()
def logical_paths(off: Patches) -> None:
    """A refusal names the host path of what was refused."""

    def make(real):
        def shown(self, rel):
            return f"{Path(f'/proc/self/fd/{self.fd}').readlink()}: {real(self, rel)}"

        return shown

    off.wrap("muniment.confine.root:Root.shown", make)


@control()
def policy_before_disk(off: Patches) -> None:
    """The disk is asked before the policy is."""

    def make(real):
        def execute(self, arguments):
            from muniment.policy.grammar import canonicalise

            self._overlay.on_disk(canonicalise(arguments.path, self._scopes))
            return real(self, arguments)

        return execute

    off.wrap("muniment.tools.workbench:Workbench._execute", make)


@control()
def hidden_key(off: Patches) -> None:
    """A server's words are passed on with the key in them."""
    off.put("muniment.agent.openai:_Endpoint.hide", lambda _self, text: text)


@control()
def quiet_key(off: Patches) -> None:
    """An error about a key quotes what was given for one."""

    def make(real):
        def checked(text, where):
            return real(text, f"{where} ({text})")

        return checked

    off.wrap("muniment.credentials:_checked", make)


@control()
def key_apart(off: Patches) -> None:
    """A root may hold the file of the key."""
    off.put("muniment.settings:Settings.apart", ())


@control()
def printable(off: Patches) -> None:
    """What was asked for is repeated as it came."""
    off.everywhere("muniment.errors:printable", lambda text: text)


@control()
def visible(off: Patches) -> None:
    """What does not show is printed as it is."""
    off.everywhere("muniment.content.gates:visible", lambda text: text)
    off.everywhere("muniment.content.gates:one_line", lambda text: text)


@control()
def index_rows(off: Patches) -> None:
    """An index holds names and descriptions as they come."""
    off.put("muniment.store.index:_escaped", lambda text, *_: text)


@control()
def content_gates(off: Patches) -> None:
    """Hidden characters are let in."""
    off.put("muniment.content.gates:_refusing", lambda *_: iter(()))


@control()
def secret_rules(off: Patches) -> None:
    """Nobody looks for secrets."""
    off.put("muniment.content.secrets:_matches", lambda *_, **__: iter(()))


@control()
def secret_views(off: Patches) -> None:
    """Secrets are looked for in the text as it stands only."""
    off.put("muniment.content.secrets:_joined", lambda _text: ("", [0]))
    off.put("muniment.content.secrets:spelled", lambda _text: None)


@control()
def active_markup(off: Patches) -> None:
    """Nobody looks at markup."""
    off.everywhere("muniment.content.markup:active_markup", lambda _text: None)


@control()
def agent_instructions(off: Patches) -> None:
    """Nobody notices that a text addresses an agent."""
    off.everywhere("muniment.content.instructions:addressed_to_agent", lambda _text, _trust: None)


@control()
def index_excerpts(off: Patches) -> None:
    """A run is shown every line of an index."""
    off.put("muniment.jobs.remember:excerpt", lambda index, _shows: index.decode())


@control()
def index_size(off: Patches) -> None:
    """An index lists every entry."""
    off.put("muniment.store.index:MAX_LINES", 1 << 30)
    off.put("muniment.store.index:MAX_BYTES", 1 << 30)


@control()
def index_follows(off: Patches) -> None:
    """Pages of an index stay as they were first made."""
    off.put("muniment.store.pages:_opened", lambda _rows, _topic, _keys, before: sorted(before))


@control()
def own_provenance(off: Patches) -> None:
    """What an entry says of its own provenance stays in it."""

    def make(real):
        return lambda text, lines, without=None: real(text, lines)  # noqa: ARG005  that is what is missing

    off.wrap("muniment.content.entry:_edited", make)


@control()
def hidden_keys(off: Patches) -> None:
    """A provenance that only other readers of YAML find stays where it is."""
    off.put("muniment.content.entry:_require_no_hidden_key", lambda _text: None)


@control()
def records(off: Patches) -> None:
    """Nothing is recorded."""
    off.put("muniment.events:emit", lambda *_, **__: None)
