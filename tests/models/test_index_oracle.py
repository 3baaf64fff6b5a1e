"""The index oracle tells a forged index from one as it should be."""

from __future__ import annotations

import pytest

from muniment.testing.corpus.index_oracle import index_problems, memory_problems

HEAD = "# Memory\n\nNotice.\n\n"


@pytest.mark.parametrize(
    "index",
    [
        HEAD,
        f"{HEAD}- [a](a.md)\n- [a](a.md)\n",
        f"{HEAD}- [a](b.md)\n",
        f"{HEAD}- [a](../a.md)\n",
        f"{HEAD}- [a](a.md) — [evil](evil.md)\n",
        f"{HEAD}- [a](a.md) — ![x](http://evil/p.png)\n",
        f"{HEAD}- [a](a.md) — <b>x</b>\n",
        f"{HEAD}- [a](a.md) — `code`\n",
        f"{HEAD}- [a](a.md) — *strong*\n",
        f"{HEAD}- [a](a.md) — [[wiki]]\n",
        f"{HEAD}- [a](a.md) — http://evil/\n",
        f"{HEAD}- [a](a.md) — www.evil.example\n",
        f"{HEAD}- [a](a.md) — <http://evil/>\n",
        f"{HEAD}- [a](a.md) — me@evil.example\n",
        f"{HEAD}- [a](a.md) — x\n  second line\n",
        f"{HEAD}- [a](a.md) — x\n- evil\n",
        f"{HEAD}- [a](a.md) — x\n  - [b](b.md)\n",
        f"{HEAD}- [a](a.md) — x\n\n# Evil\n",
        f"{HEAD}- [a](a.md) — x\n\n---\n",
        f"{HEAD}- [a](a.md) — x\n\n<!-- evil -->\n",
        f"{HEAD}- [a](a.md) — x\n\n| a | b |\n|---|---|\n",
        f"{HEAD}- [a](a.md) — x\n\n[ref]: http://evil/\n\n> quote\n",
        f'{HEAD}- [a](a.md "title")\n',
        f"{HEAD}- [](a.md)\n",
        f"{HEAD}- text [a](a.md)\n",
        f"{HEAD}- [a](a.md) — x\u2028- [evil](evil.md)\n",
        f"{HEAD}- [a](a.md) — x\x1b[2J\n",
        f"{HEAD}- [a](a.md) — x\u0085y\n",
        f"{HEAD}- [a](a.md) — x\u202ey\n",
        f"{HEAD}- [a](a.md) — x\U000e0041y\n",
        f"{HEAD}- [a](a.md)\r\n",
        "- [a](a.md)\n",
        f"- [a](a.md)\n\n{HEAD}",
    ],
)
def test_a_forged_index_is_not_safe(index):
    assert list(index_problems(index.encode(), {"a.md"})) != []


def test_an_index_that_is_no_text_is_not_safe():
    assert list(index_problems(b"# Memory\n\xff\n", set())) != []


def test_an_index_as_it_should_be_is_safe():
    assert list(index_problems(f"{HEAD}- [a](a.md) — plain \\*text\\*\n".encode(), {"a.md"})) == []


PAGED = {
    "MEMORY.md": f"{HEAD}- [pages](index/p.md)\n- [t](index/t.md)\n\n- [a](a.md)\n",
    "index/p.md": f"{HEAD}- [no topic](n.md)\n- [u](u.md)\n",
    "index/n.md": f"{HEAD}- [a](../a.md)\n- [b](../b.md)\n",
    "index/t.md": f"{HEAD}- [x](../t/x%20y.md)\n",
    "index/u.md": f"{HEAD}- [z](../u/z.md)\n",
}
FILES = {"a.md", "b.md", "t/x y.md", "u/z.md"}


def problems_of(tmp_path, **changed):
    for rel, text in {
        **PAGED,
        **{name.replace("__", "/") + ".md": text for name, text in changed.items()},
    }.items():
        if text is not None:
            (tmp_path / rel).parent.mkdir(exist_ok=True)
            (tmp_path / rel).write_text(text)
    return list(memory_problems(tmp_path, FILES))


def test_an_index_with_pages_that_lead_to_every_entry_once_is_safe(tmp_path):
    assert problems_of(tmp_path) == []


def test_an_index_of_one_file_is_judged_as_that(tmp_path):
    links = "".join(f"- [x]({rel.replace(' ', '%20')})\n" for rel in sorted(FILES))
    assert problems_of(tmp_path, MEMORY=HEAD + links) == []
    assert problems_of(tmp_path, MEMORY=f"{HEAD}- [a](a.md)\n") != []


@pytest.mark.parametrize(
    "changed",
    [
        {"index__t": None},
        {"index__t": f"{HEAD}- [x](t/x%20y.md)\n"},
        {"index__t": f"{HEAD}- [x](../t/x%20y.md)\n- [b](../b.md)\n"},
        {"index__t": f"{HEAD}- [x](../t/x%20y.md) — <b>\n"},
        {"index__n": f"{HEAD}- [a](../a.md)\n"},
        {"index__p": f"{HEAD}- [no topic](n.md)\n- [u](u.md)\n- [t](t.md)\n"},
        {"index__u": f"{HEAD}- [p](p.md)\n"},
        {"MEMORY": f"{HEAD}- [pages](index/p.md)\n- [t](index/t.md)\n\n- [ghost](ghost.md)\n"},
    ],
)
def test_pages_that_lead_elsewhere_or_not_to_every_entry_are_not_safe(tmp_path, changed):
    assert problems_of(tmp_path, **changed) != []
