"""The interface of the Model Context Protocol without its checks."""

from threats.switches import instead, none, same, table, true

# fmt: off
table({
    "own_undo": ("Let any client undo any task.", {
        "integrations.mcp.actions:_may_take_back": true}),
    "owner_pins": ("Let any client pin an entry.", {"integrations.mcp.tools:_require_owner": none}),
    "exact_previews": ("Let a forget remove the current matches instead of the previewed ones.", {
        "*operations.removals:check_preview": none}),
    "marked_answers": ("Return the text of an entry without data marks.", {
        "*integrations.telling:marked": same}),
    "known_tokens": ("Accept a revoked token.", {"server.http:Call.is_still_known": true}),
})
# fmt: on


@instead("integrations.mcp.http:_whose")
def own_sessions(_, workspace):
    """Share sessions between all tokens."""
    from muniment.integrations.mcp.http import _Whose

    return _Whose(workspace.key, "", "")
