"""Answers to clients, without the rule that hides what a recall may not show."""

from threats.switches import table, true

# fmt: off
table({
    "visible_steps": ("The history lists every step, and an error every path.", {
        "operations.visibility:Visibility.shows": true}),
    "recallable_entries": ("What is withheld or has expired is listed, and previewed.", {
        "operations.visibility:Visibility.is_recallable": true,
        "*store.upkeep:is_listable_in": lambda *_: true}),
    "visible_pins": ("What is hidden is pinned, and is shown where it stands then.", {
        "operations.edit:_may_move": true}),
    "concealed_tasks": ("A task tells what it told when it ended.", {
        "*operations.visibility:concealed": lambda task, _: task}),
})
# fmt: on
