"""Setup of coding tools, without what keeps it to the owner's files and to its own lines."""

from threats.switches import around, none, table

# fmt: off
table({
    "own_settings": ("Whatever stands at the path of a settings file is read and replaced.", {
        "integrations.coding_tools.files:_check_file": none,
        "integrations.coding_tools.files:require_way_ours": none}),
    "settings_as_read": ("Nobody looks whether a settings file changed meanwhile.", {
        "integrations.coding_tools.files:_check_unchanged": none}),
    "masked_keys": ("Values of our own entries are shown whatever they are called.", {
        "cli.setup:_masked": lambda found: found[0],
        "integrations.coding_tools.edits:_masked": lambda text, *_: text}),
})
# fmt: on


@around("integrations.coding_tools.files:placing")
def kept_privately(real, path, name):
    """What is kept of a settings file is for everybody to read."""
    return real(path, name, 0o644)


@around("cli.setup:_piece")
def own_lines(real, part, text, after):
    """A change is shown with the lines around it."""
    return real(part, text, after)._replace(shown=(text, after))
