"""Switch off the mechanisms that keep secrets out of output."""

from pathlib import Path

from threats.switches import (
    add_controls,
    control,
    do_nothing,
    replace_target,
    return_argument,
    return_true,
    wrap_target,
)

# fmt: off
add_controls({
    "hidden_key": ("Messages of a model server are passed on with the key in them.", {
        "agent.openai:_Endpoint.redact_key": lambda _self, text: text}),
    "key_apart": ("A root may contain the key file.", {"settings:Settings.protected_paths": ()}),
    "printable": ("A requested path is repeated unchanged.", {"*errors:printable": return_argument}),
    "plain_completions": ("Values and titles are completed as they are.", {
        "cli.completion:_is_safe": return_true,
        "cli.completion:_clean_help": lambda text: text or ""}),
    "visible": ("Invisible characters are printed unchanged.", {
        "*content.gates:escape_invisible": return_argument, "*content.gates:clean_line": return_argument}),
    "index_rows": ("An index contains names and descriptions unescaped.", {
        "store.index:_escape_text": return_argument}),
    "content_gates": ("Hidden characters are accepted.", {
        "content.gates:_list_rejecting_gates": lambda *_, **__: iter(())}),
    "secret_rules": ("Texts are not scanned for secrets.", {
        "content.secrets:_find_matches": lambda *_, **__: iter(())}),
    "secret_views": ("Only the literal text is scanned for secrets.", {
        "content.secrets:_join_lines": lambda _text: ("", [0]),
        "content.secrets:decode_front_matter": do_nothing}),
    "active_markup": ("Markup is not checked.", {"*content.markdown:find_active_markup": do_nothing}),
    "agent_instructions": ("Texts that address an agent are not detected.", {
        "*content.admission:find_agent_instruction": do_nothing}),
    "poison_gate": ("Facts that make an agent do harm are not detected.", {
        "*content.poison:find_poison": do_nothing}),
    "index_excerpts": ("A run sees every line of an index.", {
        "operations.indexes:filter_index": lambda index, *_: index.decode()}),
    "index_size": ("List every entry in an index.", {
        "*store.index:MAX_LINES": 1 << 30, "store.index:MAX_BYTES": 1 << 30}),
    "index_follows": ("Index pages are never reorganized.", {
        "store.index_pages:_list_parts": lambda _rows, _topic, _keys, before: sorted(before)}),
    "hidden_keys": ("Provenance that only other YAML parsers read stays in an entry.", {
        "content.entry:_require_no_hidden_key": do_nothing}),
    "records": ("Events are not logged.", {"events:emit": do_nothing}),
    "own_homes": ("Files in a home are used, even if another user wrote them.", {
        "*policy.ownership:require_trusted": do_nothing,
        "*policy.ownership:check_owner_and_mode": do_nothing}),
    "gated_words": ("Texts of a model are shown without a check.", {
        "*content.admission:find_rejecting_gate": do_nothing}),
    "shapes_of_paths": ("A path that a model requested is logged unchanged.", {
        "*store.audit:describe_path": lambda requested, *_: requested}),
    "own_messages": ("An error repeats the denial text for the model.", {
        "operations.remember:_describe_denial": lambda outcome: outcome.text}),
    "typed_secrets": ("Passwords, PINs, cards and accounts of people are not detected.", {
        "*content.typed_secrets:find_typed_secrets": lambda *_, **__: iter(())}),
    "clause_secrets": ("Values that their clause calls a secret are not detected.", {
        "*content.secret_clauses:find_secrets_in_clauses": lambda *_, **__: iter(())}),
    "note_secrets": ("Secrets in tables, next to accounts and in answers are not detected.", {
        "*content.secret_notes:find_secrets_in_notes": lambda *_, **__: iter(())}),
    "withheld_secrets": ("A queue stores received secrets.", {"server.lane:_redact_arguments": dict}),
    "scrubbed_ledger": ("An erasure deletes rows and leaves the files unchanged.", {
        "store.erase:scrub": lambda state: state.recreate_catalog()}),
    "emptied_logs": ("A log file is not emptied before it is full.", {
        "store.database:Database.try_truncate_log": return_true}),
    "erased_transcripts": ("An erasure does not remove transcripts.", {
        "store.erase:delete_transcripts": lambda *_: 0}),
    "names_of_others": ("The index shows names that other authors chose.", {
        "operations.indexes:build_lower_trust_lookup": lambda *_: lambda _rel: None}),
    "titles_for_choosers": ("A choosing model sees the titles of other authors.", {
        "recall.recaller:_describe_entry": lambda reading: f"{reading.name}: {reading.entry.body}"}),
})
# fmt: on


@wrap_target("operations.remember:_collect_event_fields")
def bare_records(real, result):
    """A log event contains the whole result."""
    return {**real(result), "document": str(result.as_json()), "problem": repr(result.error)}


@wrap_target("kernel.root:Root.open_file")
def logical_paths(real, self, path):
    """An error contains the host path of the rejected file."""
    from muniment.errors import ToolError

    try:
        return real(self, path)
    except ToolError as error:
        raise type(error)(f"{Path(f'/proc/self/fd/{self.fd}').readlink()}: {error}") from None


@wrap_target("sandbox.tools.workbench:Workbench._execute")
def policy_before_disk(real, self, arguments):
    """The disk is read before the policy decides."""
    from muniment.kernel.path import canonicalise

    self._overlay.read_disk(canonicalise(arguments.path, self._scopes))
    return real(self, arguments)


@wrap_target("settings:_validate_key")
def quiet_key(real, text, where):
    """An error about a key quotes the given value."""
    return real(text, f"{where} ({text})")


@replace_target("store.index_plan:is_replaceable")
def index_of_others_is_saved(data, rel, *_):
    """A file that looks like an index counts as a generated one."""
    from muniment.store.index import is_generated

    return is_generated(data, rel)


@control()
def own_provenance(off):
    """The provenance that an entry claims stays in it."""
    off.wrap(
        "content.entry:_edit_front_matter",
        lambda real: lambda text, at, _gone, lines: real(text, at, (), lines),
    )
    off.put("operations.labels:FactLabels.add_labels", lambda _, after, __: after)


@wrap_target("operations.remember:_create_result")
def own_sentences(real, task, outcome, done):
    """The last message of the model becomes the summary."""
    from dataclasses import replace

    return replace(real(task, outcome, done), summary=outcome.final_text)


@wrap_target("store.state:open_ledger")
def overwritten_pages(real, path):
    """Deleted data stays in its database page."""
    database = real(path)
    database.rows("PRAGMA secure_delete = OFF")
    return database
