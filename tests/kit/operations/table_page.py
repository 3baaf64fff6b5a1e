"""The section of docs/library.md that is generated from the table of operations.

PYTHONPATH=tests python -m kit.operations.table_page
"""

from kit.where import REPOSITORY
from muniment.operations.table import markdown

PAGE = REPOSITORY / "docs" / "library.md"
BEGIN, END = "<!-- operations -->\n\n", "\n\n<!-- end of operations -->\n"
COMMAND = "PYTHONPATH=tests python -m kit.operations.table_page"


def page():
    """Return the page with the current section."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{markdown()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
