"""Tests of the generated tables in `threat-model/REVIEW.md`."""

import re

import pytest

from threats.review import COMMAND, LIMITS, PAGE, REPOSITORY, count_caught, make_handler_table, make_page

PAGES = [
    REPOSITORY / "CONTRIBUTING.md",
    REPOSITORY / "README.md",
    *(REPOSITORY / "threat-model").rglob("*.md"),
]


def test_generated_tables_are_up_to_date():
    text = PAGE.read_text()
    assert make_page(text) == text, f"run: {COMMAND}"


def test_size_limits_are_in_the_review_table_only():
    for limit in LIMITS.values():
        spelled = re.compile(rf"\b{limit // 1000}[ ,_]?{limit % 1000:03}\b")
        holders = [path.name for path in PAGES if spelled.search(path.read_text())]
        assert holders == [PAGE.name]
        assert len(spelled.findall(PAGE.read_text())) == 1


SOURCE = """
class Root:
    def read(self):
        try:
            with suppress(KeyError):
                pass
        except (OSError, ValueError):
            pass
        except OSError:
            try:
                pass
            except OSError:
                pass
"""
ERRORS = {"suppress(KeyError)": 1, "OSError, ValueError": 1, "OSError": 2}
REASONS = {"suppress(KeyError)": "One.", "OSError, ValueError": "Two.", "OSError (2 times)": "Two."}


def test_handlers_are_grouped_by_reason():
    assert count_caught(SOURCE) == {"Root.read": ERRORS}
    rows = list(make_handler_table({"root.Root.read": ERRORS}, {"root.Root.read": REASONS}))
    assert rows[1:] == [
        "| `root.Root.read` | `suppress(KeyError)` | One. |\n",
        "| `root.Root.read` | `OSError, ValueError`, `OSError (2 times)` | Two. |\n",
    ]


@pytest.mark.parametrize("errors", [{**ERRORS, "KeyError": 1}, {**ERRORS, "OSError": 3}, {"OSError": 2}])
def test_unmatched_handler_or_reason_fails(errors):
    with pytest.raises(AssertionError, match="without a"):
        list(make_handler_table({"root.Root.read": errors}, {"root.Root.read": REASONS}))
