"""Switch off the checks of `muniment setup`."""

from threats.switches import add_controls, do_nothing, wrap_target

# fmt: off
add_controls({
    "own_settings": ("Any file at the path of a settings file is read and replaced.", {
        "integrations.coding_tools.files:_check_file": do_nothing,
        "integrations.coding_tools.files:require_trusted_directories": do_nothing}),
    "settings_as_read": ("A concurrent change of a settings file is not detected.", {
        "integrations.coding_tools.files:_check_unchanged": do_nothing}),
    "masked_keys": ("Values of own entries are shown with their secrets.", {
        "cli.setup:_mask": lambda found: found[0],
        "integrations.coding_tools.edits:_mask_values": lambda text, *_: text}),
})
# fmt: on


@wrap_target("integrations.coding_tools.files:write_atomically")
def private_backups(real, path, name):
    """The backup of a settings file is readable by all users."""
    return real(path, name, 0o644)


@wrap_target("cli.setup:_create_piece")
def own_lines(real, part, text, after):
    """A change is shown with the surrounding lines."""
    return real(part, text, after)._replace(shown=(text, after))
