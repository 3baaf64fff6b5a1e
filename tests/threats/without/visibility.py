"""Responses to clients without the visibility rule of recall."""

from threats.switches import table, true

# fmt: off
table({
    "visible_steps": ("List every step in the history and every path in an error.", {
        "operations.visibility:Visibility.shows": true}),
    "recallable_entries": ("List and preview withheld and expired entries.", {
        "operations.visibility:Visibility.is_recallable": true,
        "*store.upkeep:is_listable_in": lambda *_: true}),
    "visible_pins": ("Pin hidden entries and show their new path.", {
        "operations.edit:_may_move": true}),
    "concealed_tasks": ("Return the original result of a task.", {
        "*operations.visibility:concealed": lambda task, _: task}),
})
# fmt: on
