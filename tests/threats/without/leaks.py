"""What is said, without what keeps secrets out of it."""

from pathlib import Path

from threats.switches import around, control, instead, none, same, table, true

# fmt: off
table({
    "hidden_key": ("A server's words are passed on with the key in them.", {
        "agent.openai:_Endpoint.hide": lambda _self, text: text}),
    "key_apart": ("A root may hold the file of the key.", {"settings:Settings.apart": ()}),
    "printable": ("What was asked for is repeated as it came.", {"*errors:printable": same}),
    "visible": ("What does not show is printed as it is.", {
        "*content.gates:visible": same, "*content.gates:one_line": same}),
    "index_rows": ("An index holds names and descriptions as they come.", {"store.index:_escaped": same}),
    "content_gates": ("Hidden characters are let in.", {
        "content.gates:_refusing": lambda *_, **__: iter(())}),
    "secret_rules": ("Nobody looks for secrets.", {"content.secrets:_matches": lambda *_, **__: iter(())}),
    "secret_views": ("Secrets are looked for in the text as it stands only.", {
        "content.secrets:_joined": lambda _text: ("", [0]), "content.secrets:spelled": none}),
    "active_markup": ("Nobody looks at markup.", {"*content.markdown:active_markup": none}),
    "agent_instructions": ("Nobody notices that a text addresses an agent.", {
        "*content.admission:addressed_to_agent": none}),
    "poison_gate": ("Nobody notices that a fact would have an agent do harm.", {
        "*content.poison:find_poison": none}),
    "index_excerpts": ("A run is shown every line of an index.", {
        "operations.indexes:excerpt": lambda index, *_: index.decode()}),
    "index_size": ("An index lists every entry.", {
        "*store.index:MAX_LINES": 1 << 30, "store.index:MAX_BYTES": 1 << 30}),
    "index_follows": ("Pages of an index stay as they were first made.", {
        "store.index_pages:_opened": lambda _rows, _topic, _keys, before: sorted(before)}),
    "hidden_keys": ("A provenance that only other readers of YAML find stays where it is.", {
        "content.entry:_require_no_hidden_key": none}),
    "records": ("Nothing is recorded.", {"events:emit": none}),
    "own_homes": ("Whatever stands in a home is obeyed, whoever wrote it.", {
        "*policy.ownership:require_ours": none, "*policy.ownership:check_ours": none}),
    "gated_words": ("A model's words are told whatever they say.", {"*content.admission:stopped_by": none}),
    "shapes_of_paths": ("A path that a model asked for is told as it came.", {
        "*store.audit:described": lambda requested, *_: requested}),
    "reasons_of_ours": ("A refusal is told in the words that the model was told.", {
        "operations.remember:_reason": lambda outcome: outcome.text}),
    "typed_secrets": ("Nobody looks for what people say to be a password, a PIN, a card or an account.", {
        "*content.typed_secrets:typed": lambda *_, **__: iter(())}),
    "clause_secrets": ("Nobody looks for values that words in their clause name.", {
        "*content.secret_clauses:secrets_in_clauses": lambda *_, **__: iter(())}),
    "note_secrets": ("Nobody looks for values in tables, beside accounts and in answers.", {
        "*content.secret_notes:secrets_in_notes": lambda *_, **__: iter(())}),
    "withheld_secrets": ("A queue keeps what it is sent.", {"server.lane:_withheld": dict}),
    "scrubbed_ledger": ("An erasure deletes rows, and leaves the files as they are.", {
        "store.erase:scrub": lambda state: state.renew_catalog()}),
    "emptied_logs": ("A log is left as it is until it is full.", {"store.database:Database.tidy": true}),
    "erased_transcripts": ("An erasure asks nobody for transcripts.", {
        "store.erase:remove_telling": lambda *_: 0}),
    "names_of_others": ("The index is told in the words of whoever wrote the entries.", {
        "operations.indexes:trusted_less": lambda *_: lambda _rel: None}),
    "titles_for_choosers": ("A model that chooses is shown the titles of whoever wrote the entries.", {
        "recall.recaller:_about": lambda reading: f"{reading.name}: {reading.entry.body}"}),
})
# fmt: on


@around("operations.remember:_event_fields")
def bare_records(real, result):
    """A record holds the whole result."""
    return {**real(result), "document": str(result.as_json()), "problem": repr(result.error)}


@around("kernel.root:Root.open_file")
def logical_paths(real, self, path):
    """A refusal names the host path of what was refused."""
    from muniment.errors import ToolError

    try:
        return real(self, path)
    except ToolError as error:
        raise type(error)(f"{Path(f'/proc/self/fd/{self.fd}').readlink()}: {error}") from None


@around("sandbox.tools.workbench:Workbench._execute")
def policy_before_disk(real, self, arguments):
    """The disk is asked before the policy is."""
    from muniment.kernel.path import canonicalise

    self._overlay.on_disk(canonicalise(arguments.path, self._scopes))
    return real(self, arguments)


@around("settings:_checked_credential")
def quiet_key(real, text, where):
    """An error about a key quotes what was given for one."""
    return real(text, f"{where} ({text})")


@instead("store.index_plan:says_nothing_else")
def index_of_others_is_saved(data, rel, *_):
    """What looks like an index is taken for ours."""
    from muniment.store.index import is_generated

    return is_generated(data, rel)


@control()
def own_provenance(off):
    """What an entry says of its own provenance stays in it."""
    off.wrap("content.entry:_edited", lambda real: lambda text, at, _gone, lines: real(text, at, (), lines))
    off.put("operations.labels:FactWords.labelled", lambda _, after, __: after)


@around("operations.remember:_committed")
def own_sentences(real, task, outcome, done):
    """A summary is what the model said last."""
    from dataclasses import replace

    return replace(real(task, outcome, done), summary=outcome.final_text)


@around("store.state:open_ledger")
def overwritten_pages(real, path):
    """What is deleted stays in its page."""
    database = real(path)
    database.rows("PRAGMA secure_delete = OFF")
    return database
