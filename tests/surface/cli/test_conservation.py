"""`muniment import` loses nothing: each line of a source is in the memory or in the report."""

import json

import pytest

from kit import trees
from kit.conservation import bodies_of, flat, lost_lines
from kit.memories import make_roots, put
from surface.cli.conftest import Muniment


def waiting_texts(muniment):
    """What waits for review, as text."""
    for each in muniment.document("review", "list")["reviews"]:
        shown = muniment.document("review", "show", each["review_id"])
        yield json.dumps(shown, ensure_ascii=False)


def imported(muniment, source, *more):
    done = muniment("import", source, *more, "--json")
    assert done.exit_code in {0, 1}, done.output
    return json.loads(done.stdout)


def lost(base, files, *more):
    """What an import of some files into an empty memory loses."""
    source, roots = base / "source", make_roots(base)
    for name, data in files.items():
        put(source, name, data)
    muniment = Muniment(base, roots)
    done = imported(muniment, source, *more)
    return list(lost_lines(files, roots.values(), done, waiting_texts(muniment)))


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(at, marks=pytest.mark.slow) for at in range(4, 100))]
)
def test_import_of_generated_tree_loses_no_line(tmp_path, seed):
    assert lost(tmp_path, trees.tree(seed), *(["--trust=owner"] if seed % 2 else []))[:9] == []


@pytest.mark.parametrize("make", [trees.graph, trees.rows_of_mem0])
@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(at, marks=pytest.mark.slow) for at in range(6, 100))]
)
def test_import_of_generated_json_loses_no_fact(tmp_path, make, seed):
    data, facts = make(seed)
    roots = make_roots(tmp_path)
    muniment = Muniment(tmp_path, roots)
    source = put(tmp_path, "rows.jsonl" if seed % 2 else "rows.json", data)
    done = imported(muniment, source)
    memory = "\n".join([*bodies_of(roots.values()), *map(flat, waiting_texts(muniment))])
    unsaid = [fact for fact in facts if flat(fact) not in memory]
    named = sum(1 for each in [*done["refused"], *done["not_taken"]])
    assert (unsaid if not named else []) == []
    assert [fact for fact in unsaid if fact.startswith("The team") and not rows_named(data, fact, done)] == []


def rows_named(data, fact, done):
    """Whether a report row without a list of values names the row in which a fact stands."""
    lines = data.decode("utf-8-sig").splitlines()
    at = {number for number, line in enumerate(lines, 1) if fact in line}
    try:
        whole = json.loads(data.decode("utf-8-sig"))
        listed = whole if isinstance(whole, list) else next(iter(whole.values()))
        at |= {number for number, row in enumerate(listed, 1) if fact in json.dumps(row)}
    except (ValueError, StopIteration):
        pass
    return any(
        each["name"].endswith(f":{number}")
        for each in [*done["refused"], *done["not_taken"]]
        for number in at
    )
