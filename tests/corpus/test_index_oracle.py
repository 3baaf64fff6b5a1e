"""The index oracle tells a forged index from one as it should be."""

from __future__ import annotations

import pytest

from muniment.testing.corpus.index_oracle import index_problems

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
