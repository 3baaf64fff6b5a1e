"""The door of the Model Context Protocol, without what is checked there."""

from threats.switches import instead, none, same, table, true

# fmt: off
table({
    "own_undo": ("Whoever asks takes back what anybody had done.", {
        "integrations.mcp.actions:_may_take_back": true}),
    "owner_pins": ("Whoever asks pins an entry.", {"integrations.mcp.tools:_require_owner": none}),
    "exact_previews": ("A forget removes whatever is meant by now.", {
        "*operations.removals:check_preview": none}),
    "marked_answers": ("What an entry says stands in an answer as it is.", {
        "*integrations.telling:marked": same}),
    "known_tokens": ("A token that was revoked goes on.", {"server.http:Call.is_still_known": true}),
})
# fmt: on


@instead("integrations.mcp.http:_whose")
def own_sessions(_, workspace):
    """All tokens have the same sessions."""
    from muniment.integrations.mcp.http import _Whose

    return _Whose(workspace.key, "", "")
