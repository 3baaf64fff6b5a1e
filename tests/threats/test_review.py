"""The page by which somebody else reviews the kernel."""

import pytest

from threats.review import COMMAND, PAGE, caught, handler_table, page


def test_the_tables_are_what_the_sources_say_now():
    text = PAGE.read_text()
    assert page(text) == text, f"run: {COMMAND}"


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


def test_handlers_are_found_and_told_once_for_each_reason():
    assert caught(SOURCE) == {"Root.read": ERRORS}
    rows = list(handler_table({"root.Root.read": ERRORS}, {"root.Root.read": REASONS}))
    assert rows[1:] == [
        "| `root.Root.read` | `suppress(KeyError)` | One. |\n",
        "| `root.Root.read` | `OSError, ValueError`, `OSError (2 times)` | Two. |\n",
    ]


@pytest.mark.parametrize("errors", [{**ERRORS, "KeyError": 1}, {**ERRORS, "OSError": 3}, {"OSError": 2}])
def test_handler_without_a_reason_and_reason_without_a_handler_fail(errors):
    with pytest.raises(AssertionError, match="without a"):
        list(handler_table({"root.Root.read": errors}, {"root.Root.read": REASONS}))
