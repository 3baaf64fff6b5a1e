"""The page by which somebody else reviews the kernel."""

from threats.review import COMMAND, PAGE, page


def test_the_tables_are_what_the_sources_say_now():
    text = PAGE.read_text()
    assert page(text) == text, f"run: {COMMAND}"
