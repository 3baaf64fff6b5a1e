"""Tests of the index oracle: it rejects forged indexes and accepts valid ones."""

import tempfile
from pathlib import Path

from muniment.testing.corpus.index_oracle import index_problems, memory_problems

HEAD = "# Memory\n\nNotice.\n\n"


ENTRY = f"{HEAD}- [a](a.md) — "
FORGED = [
    *(HEAD, f"{HEAD}- [a](a.md)\n- [a](a.md)\n", f"{HEAD}- [a](b.md)\n", f"{HEAD}- [](a.md)\n"),
    *(f"{ENTRY}[evil](evil.md)\n", f"{ENTRY}![x](http://evil/p.png)\n", f"{ENTRY}<b>x</b>\n"),
    *(f"{ENTRY}`code`\n", f"{ENTRY}[[wiki]]\n", f"{ENTRY}http://evil/\n", f"{ENTRY}me@evil.example\n"),
    *(f"{ENTRY}x\n  second line\n", f"{ENTRY}x\n- evil\n", f"{ENTRY}x\n\n# Evil\n"),
    *(f"{ENTRY}x\n\n| a | b |\n|---|---|\n", f"{ENTRY}x\n\n[ref]: http://evil/\n\n> quote\n"),
    *(f'{HEAD}- [a](a.md "title")\n', f"{HEAD}- text [a](a.md)\n", f"{ENTRY}x\x1b[2J\n"),
    *(f"{ENTRY}x\u2028- [evil](evil.md)\n", f"{HEAD}- [a](a.md)\r\n", "- [a](a.md)\n"),
]


def test_oracle_rejects_forged_indexes():
    assert list(index_problems(f"{ENTRY}plain \\*text\\*\n".encode(), {"a.md"})) == []
    for index in FORGED:
        assert list(index_problems(index.encode(), {"a.md"})) != [], index
    assert list(index_problems(b"# Memory\n\xff\n", set())) != []


PAGED = {
    "MEMORY.md": f"{HEAD}- [pages](index/p.md)\n- [t](index/t.md)\n\n- [a](a.md)\n",
    "index/p.md": f"{HEAD}- [no topic](n.md)\n- [u](u.md)\n",
    "index/n.md": f"{HEAD}- [a](../a.md)\n- [b](../b.md)\n",
    "index/t.md": f"{HEAD}- [x](../t/x%20y.md)\n",
    "index/u.md": f"{HEAD}- [z](../u/z.md)\n",
}
FILES = {"a.md", "b.md", "t/x y.md", "u/z.md"}


CHANGES = [
    {"index/t.md": None},
    {"index/t.md": f"{HEAD}- [x](t/x%20y.md)\n"},
    {"index/t.md": f"{HEAD}- [x](../t/x%20y.md) — <b>\n"},
    {"index/p.md": f"{HEAD}- [no topic](n.md)\n- [u](u.md)\n- [t](t.md)\n"},
    {"MEMORY.md": f"{HEAD}- [pages](index/p.md)\n- [t](index/t.md)\n\n- [ghost](ghost.md)\n"},
    {"MEMORY.md": f"{HEAD}- [a](a.md)\n"},
]


def test_oracle_rejects_wrong_index_pages(tmp_path):
    def find_problems(changed):
        base = Path(tempfile.mkdtemp(dir=tmp_path))
        (base / "index").mkdir()
        for rel, text in {**PAGED, **changed}.items():
            if text is not None:
                (base / rel).write_text(text)
        return list(memory_problems(base, FILES))

    one_file = "".join(f"- [x]({rel.replace(' ', '%20')})\n" for rel in sorted(FILES))
    assert find_problems({}) == find_problems({"MEMORY.md": HEAD + one_file}) == []
    for changed in CHANGES:
        assert find_problems(changed) != [], changed
