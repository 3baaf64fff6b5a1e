"""What of an entry a query means: the whole, an item, or nothing."""

from __future__ import annotations

import pytest

from muniment.content.entry import parse
from muniment.content.words import significant
from muniment.jobs.forget import meant
from muniment.names import RelPath

HEAD = "---\nname: Staging server\ndescription: how to reach it\nkeywords: [ssh]\n---\n"
NESTED = "- dark\n  - mode at night\n  - dark mode at home\n- tea\n  - dark\n  - mode\n"


def found(text, query, rel="topic/notes.md"):
    """`whole`, the items by their first lines, or None."""
    what = meant(parse(text), RelPath(rel), significant(query))
    if what is None:
        return None
    return "whole" if what.is_whole else [item.own.splitlines()[0] for item in what.items]


@pytest.mark.parametrize(
    ("text", "query", "expected"),
    [
        ("dark mode", "dark mode", "whole"),
        ("dark\n\nmode", "dark mode", "whole"),
        ("dark", "dark mode", None),
        ("- dark mode\n- tea\n", "dark mode", ["dark mode"]),
        ("- dark mode\n- more dark mode\n", "dark mode", ["dark mode", "more dark mode"]),
        ("- dark\n- mode\n", "dark mode", []),
        ("dark mode\n\n- dark mode too\n", "dark mode", "whole"),
        ("text on dark\n\n- and mode\n", "dark mode", []),
        ("# Dark mode\n\n- tea\n", "dark mode", "whole"),
        ("# Dark mode\n\n- dark mode\n", "dark mode", ["dark mode"]),
        ("# Tea\n\n- dark\n- green\n", "green tea", ["green"]),
        (NESTED, "dark mode", ["dark mode at home", "tea"]),
        (NESTED, "mode night", ["mode at night"]),
        (NESTED, "dark night", ["dark"]),
        (f"{HEAD}- port 80\n- user root\n", "staging", "whole"),
        (f"{HEAD}- port 80\n- user root\n", "ssh staging reach", "whole"),
        (f"{HEAD}- port 80\n- user root\n", "staging port", ["port 80"]),
        (f"{HEAD}- port 80\n- user root\n", "port root", []),
        (f"{HEAD}some text on ports\n\n- user root\n", "staging ports", "whole"),
        ("- likes green tea\n- uses vim\n", "green vim", []),
    ],
)
def test_a_query_means_the_narrowest_thing_that_says_it_all(text, query, expected):
    assert found(text, query) == expected


def test_the_name_of_the_file_is_a_name_where_there_is_no_other():
    assert found("- tea\n- coffee\n", "drinks tea", "drinks.md") == ["tea"]
    assert found("---\nname: x\n---\n- tea\n- coffee\n", "drinks tea", "drinks.md") is None
