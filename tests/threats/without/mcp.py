"""Switch off the checks of the MCP server."""

from threats.switches import add_controls, do_nothing, replace_target, return_argument, return_true

# fmt: off
add_controls({
    "own_undo": ("Any client may undo any task.", {
        "integrations.mcp.actions:_may_take_back": return_true}),
    "owner_pins": ("Any client may pin an entry.", {"integrations.mcp.tools:_require_owner": do_nothing}),
    "exact_previews": ("A forget removes all current matches.", {
        "*operations.removals:check_preview": do_nothing}),
    "marked_answers": ("The text of an entry is unmarked in an answer.", {
        "*integrations.telling:marked": return_argument}),
    "known_tokens": ("A revoked token still works.", {"server.http:Call.is_still_known": return_true}),
})
# fmt: on


@replace_target("integrations.mcp.http:_whose")
def own_sessions(_, workspace):
    """All tokens share their sessions."""
    from muniment.integrations.mcp.http import _Whose

    return _Whose(workspace.key, "", "")
