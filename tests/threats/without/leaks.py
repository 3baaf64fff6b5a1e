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

    off.wrap("muniment.settings:_checked_credential", make)


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
    off.everywhere("muniment.content.markdown:active_markup", lambda _text: None)


@control()
def agent_instructions(off: Patches) -> None:
    """Nobody notices that a text addresses an agent."""
    off.everywhere("muniment.content.admission:addressed_to_agent", lambda _text, _trust: None)


@control()
def index_excerpts(off: Patches) -> None:
    """A run is shown every line of an index."""
    off.put("muniment.jobs.remember:excerpt", lambda index, *_: index.decode())


@control()
def index_of_others_is_saved(off: Patches) -> None:
    """What looks like an index is taken for ours."""
    from muniment.store.index import is_generated

    off.put("muniment.store.upkeep:says_nothing_else", lambda data, rel, *_: is_generated(data, rel))


@control()
def index_size(off: Patches) -> None:
    """An index lists every entry."""
    off.put("muniment.store.index:MAX_LINES", 1 << 30)
    off.put("muniment.store.index:MAX_BYTES", 1 << 30)


@control()
def index_follows(off: Patches) -> None:
    """Pages of an index stay as they were first made."""
    off.put("muniment.store.index:_opened", lambda _rows, _topic, _keys, before: sorted(before))


@control()
def own_provenance(off: Patches) -> None:
    """What an entry says of its own provenance stays in it."""

    def make(real):
        return lambda text, lines, without=None: real(text, lines)  # noqa: ARG005  that is what is missing

    off.wrap("muniment.content.entry:_edited", make)
    off.put("muniment.jobs.remember:_FactWords.labelled", lambda _, after, __: after)


@control()
def hidden_keys(off: Patches) -> None:
    """A provenance that only other readers of YAML find stays where it is."""
    off.put("muniment.content.entry:_require_no_hidden_key", lambda _text: None)


@control()
def records(off: Patches) -> None:
    """Nothing is recorded."""
    off.put("muniment.events:emit", lambda *_, **__: None)


@control()
def own_homes(off: Patches) -> None:
    """Whatever stands in a home is obeyed, whoever wrote it."""
    off.everywhere("muniment.confine.binding:require_ours", lambda *_, **__: None)
    off.everywhere("muniment.confine.binding:check_ours", lambda *_, **__: None)


@control()
def own_sentences(off: Patches) -> None:
    """A summary is what the model said last."""

    def make(real):
        from dataclasses import replace

        def committed(task, budget, outcome, done):
            return replace(real(task, budget, outcome, done), summary=outcome.final_text)

        return committed

    off.wrap("muniment.jobs.remember:_committed", make)


@control()
def gated_words(off: Patches) -> None:
    """A model's words are told whatever they say."""
    off.everywhere("muniment.content.admission:stopped_by", lambda *_: None)


@control()
def shapes_of_paths(off: Patches) -> None:
    """A path that a model asked for is told as it came."""
    off.everywhere("muniment.store.audit:described", lambda requested, *_: requested)


@control()
def reasons_of_ours(off: Patches) -> None:
    """A refusal is told in the words that the model was told."""
    off.put("muniment.jobs.remember:_reason", lambda outcome: outcome.text)


@control()
def typed_secrets(off: Patches) -> None:
    """Nobody looks for what people say to be a password, a PIN, a card or an account."""
    off.everywhere("muniment.content.secrets:typed", lambda _data: iter(()))


@control()
def withheld_secrets(off: Patches) -> None:
    """A queue keeps what it is sent."""
    off.put("muniment.lane:_withheld", dict)


@control()
def scrubbed_ledger(off: Patches) -> None:
    """An erasure deletes rows, and leaves the files as they are."""
    off.put("muniment.store.erase:scrub", lambda state: state.renew_catalog())


@control()
def emptied_logs(off: Patches) -> None:
    """A log is left as it is until it is full."""
    off.put("muniment.store.database:Database.tidy", lambda _self: True)


@control()
def overwritten_pages(off: Patches) -> None:
    """What is deleted stays in its page."""

    def make(real):
        def opened(path):
            database = real(path)
            database.rows("PRAGMA secure_delete = OFF")
            return database

        return opened

    off.wrap("muniment.store.state:open_ledger", make)


@control()
def erased_transcripts(off: Patches) -> None:
    """An erasure asks nobody for transcripts."""
    off.put("muniment.store.erase:remove_telling", lambda *_: 0)


@control()
def names_of_others(off: Patches) -> None:
    """The index is told in the words of whoever wrote the entries."""
    off.put("muniment.jobs.remember:trusted_less", lambda *_: lambda _rel: None)


@control()
def titles_for_choosers(off: Patches) -> None:
    """A model that chooses is shown the titles of whoever wrote the entries."""
    off.put("muniment.recall.recaller:_about", lambda reading: f"{reading.name}: {reading.entry.body}")
