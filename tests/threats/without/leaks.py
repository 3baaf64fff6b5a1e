"""Outputs without the filters for secrets."""

from pathlib import Path

from threats.switches import around, control, instead, none, same, table, true

# fmt: off
table({
    "hidden_key": ("Pass on a server's text with the key in it.", {
        "agent.openai:_Endpoint.hide": lambda _self, text: text}),
    "key_apart": ("Accept a root that contains the key file.", {"settings:Settings.apart": ()}),
    "printable": ("Repeat a requested path unfiltered.", {"*errors:printable": same}),
    "visible": ("Print invisible characters unescaped.", {
        "*content.gates:visible": same, "*content.gates:one_line": same}),
    "index_rows": ("Write names and descriptions into an index unescaped.", {"store.index:_escaped": same}),
    "content_gates": ("Accept hidden characters.", {
        "content.gates:_refusing": lambda *_, **__: iter(())}),
    "secret_rules": ("Skip the search for secrets.", {"content.secrets:_matches": lambda *_, **__: iter(())}),
    "secret_views": ("Search for secrets only in the text as written.", {
        "content.secrets:_joined": lambda _text: ("", [0]), "content.secrets:spelled": none}),
    "active_markup": ("Skip the check of markup.", {"*content.markdown:active_markup": none}),
    "agent_instructions": ("Skip the check for text that addresses an agent.", {
        "*content.admission:addressed_to_agent": none}),
    "poison_gate": ("Skip the check for facts that make an agent do harm.", {
        "*content.poison:find_poison": none}),
    "index_excerpts": ("Show a run every line of an index.", {
        "operations.indexes:excerpt": lambda index, *_: index.decode()}),
    "index_size": ("List every entry in an index.", {
        "*store.index:MAX_LINES": 1 << 30, "store.index:MAX_BYTES": 1 << 30}),
    "index_follows": ("Leave the pages of an index as first written.", {
        "store.index_pages:_opened": lambda _rows, _topic, _keys, before: sorted(before)}),
    "hidden_keys": ("Keep a provenance that only other YAML parsers find.", {
        "content.entry:_require_no_hidden_key": none}),
    "records": ("Write no audit records.", {"events:emit": none}),
    "own_homes": ("Trust every file in a home, writable by any user.", {
        "*policy.ownership:require_ours": none, "*policy.ownership:check_ours": none}),
    "gated_words": ("Return a model's words unfiltered.", {"*content.admission:stopped_by": none}),
    "shapes_of_paths": ("Report a path requested by a model unfiltered.", {
        "*store.audit:described": lambda requested, *_: requested}),
    "reasons_of_ours": ("Report a denial with the text for the model.", {
        "operations.remember:_reason": lambda outcome: outcome.text}),
    "typed_secrets": ("Skip the search for typed passwords, PINs, cards and accounts.", {
        "*content.typed_secrets:typed": lambda *_, **__: iter(())}),
    "clause_secrets": ("Skip the search for secrets by the words of their clause.", {
        "*content.secret_clauses:secrets_in_clauses": lambda *_, **__: iter(())}),
    "note_secrets": ("Skip the search for secrets in tables, next to accounts and in replies.", {
        "*content.secret_notes:secrets_in_notes": lambda *_, **__: iter(())}),
    "withheld_secrets": ("Store received tasks unfiltered in the queue.", {"server.lane:_withheld": dict}),
    "scrubbed_ledger": ("Let an erasure delete rows without overwriting the files.", {
        "store.erase:scrub": lambda state: state.renew_catalog()}),
    "emptied_logs": ("Leave the write-ahead log until it is full.", {"store.database:Database.tidy": true}),
    "erased_transcripts": ("Let an erasure ignore transcripts.", {
        "store.erase:remove_telling": lambda *_: 0}),
    "names_of_others": ("Show an index with the words of all authors.", {
        "operations.indexes:trusted_less": lambda *_: lambda _rel: None}),
    "titles_for_choosers": ("Show the selecting model the titles of all authors.", {
        "recall.recaller:_about": lambda reading: f"{reading.name}: {reading.entry.body}"}),
})
# fmt: on


@around("operations.remember:_event_fields")
def bare_records(real, result):
    """Store the complete result in a record."""
    return {**real(result), "document": str(result.as_json()), "problem": repr(result.error)}


@around("kernel.root:Root.open_file")
def logical_paths(real, self, path):
    """Report the host path in a denial."""
    from muniment.errors import ToolError

    try:
        return real(self, path)
    except ToolError as error:
        raise type(error)(f"{Path(f'/proc/self/fd/{self.fd}').readlink()}: {error}") from None


@around("sandbox.tools.workbench:Workbench._execute")
def policy_before_disk(real, self, arguments):
    """Check the disk before the policy."""
    from muniment.kernel.path import canonicalise

    self._overlay.on_disk(canonicalise(arguments.path, self._scopes))
    return real(self, arguments)


@around("settings:_checked_credential")
def quiet_key(real, text, where):
    """Quote the given value in an error about a key."""
    return real(text, f"{where} ({text})")


@instead("store.index_plan:says_nothing_else")
def index_of_others_is_saved(data, rel, *_):
    """Treat any file that looks like an index as generated."""
    from muniment.store.index import is_generated

    return is_generated(data, rel)


@control()
def own_provenance(off):
    """Keep an entry's own provenance claims."""
    off.wrap("content.entry:_edited", lambda real: lambda text, at, _gone, lines: real(text, at, (), lines))
    off.put("operations.labels:FactWords.labelled", lambda _, after, __: after)


@around("operations.remember:_committed")
def own_sentences(real, task, outcome, done):
    """Use the model's last text as the summary."""
    from dataclasses import replace

    return replace(real(task, outcome, done), summary=outcome.final_text)


@around("store.state:open_ledger")
def overwritten_pages(real, path):
    """Leave deleted data in its database page."""
    database = real(path)
    database.rows("PRAGMA secure_delete = OFF")
    return database
