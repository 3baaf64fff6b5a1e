"""Setup of coding tools without the checks of files and lines."""

from threats.switches import around, none, table

# fmt: off
table({
    "own_settings": ("Read and replace any file at the path of a settings file.", {
        "integrations.coding_tools.files:_check_file": none,
        "integrations.coding_tools.files:require_way_ours": none}),
    "settings_as_read": ("Skip the check for changes of a settings file.", {
        "integrations.coding_tools.files:_check_unchanged": none}),
    "masked_keys": ("Show all values of Muniment's own entries.", {
        "cli.setup:_masked": lambda found: found[0],
        "integrations.coding_tools.edits:_masked": lambda text, *_: text}),
})
# fmt: on


@around("integrations.coding_tools.files:placing")
def kept_privately(real, path, name):
    """Let every user read the backup of a settings file."""
    return real(path, name, 0o644)


@around("cli.setup:_piece")
def own_lines(real, part, text, after):
    """Show a change with the lines around it."""
    return real(part, text, after)._replace(shown=(text, after))
