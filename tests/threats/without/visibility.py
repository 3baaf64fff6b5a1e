"""Switch off the rule that hides entries which a client may not recall."""

from threats.switches import add_controls, return_true

# fmt: off
add_controls({
    "visible_steps": ("The history lists every step, and an error names every path.", {
        "operations.visibility:Visibility.is_path_visible": return_true}),
    "recallable_entries": ("Withheld and expired entries are listed and previewed.", {
        "operations.visibility:Visibility.is_recallable": return_true,
        "*store.index_upkeep:build_listable_test": lambda *_: return_true}),
    "visible_pins": ("A hidden entry can be pinned, and is then shown.", {
        "operations.edit:_can_see_move": return_true}),
    "concealed_tasks": ("A task shows its original result.", {
        "*operations.visibility:redact_task": lambda task, _: task}),
})
# fmt: on
