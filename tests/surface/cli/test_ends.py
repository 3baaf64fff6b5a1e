"""End dates of facts at the command line."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta

from kit.memories import write_file
from muniment.content.entry import parse

TODAY = datetime.now(UTC).astimezone().date()
PAST = TODAY - timedelta(days=2)
FACT = f"The gym is closed until {TODAY}"


def read_dates(muniment, path):
    entry = parse(muniment.run_for_document("show", path)["content"])
    return entry.expires, None if entry.ends is None else str(entry.ends)


def read_paths(document):
    return {each["path"] for each in document["entries"]}


def test_end_date_includes_today_for_every_source(cli, tmp_path):
    (dated,) = cli.run_for_document("remember", FACT)["files_touched"]
    (hidden,) = cli.run_for_document("remember", "The pool is warm", f"--expires={TODAY}")["files_touched"]
    rows = [
        {"id": "1", "memory": f"The sauna is closed until {TODAY}"},
        {"id": "2", "memory": "The bar is open", "expiration_date": str(TODAY)},
        {"id": "3", "memory": "The court is closed until Friday"},
        {"id": "4", "memory": "The track is closed until Friday", "updated_at": "2026-11-25T10:00:00Z"},
    ]
    sauna, bar, court, track = cli.run_for_document(
        "import", write_file(tmp_path, "m.json", json.dumps(rows))
    )["imported"]
    lines = f"---\nexpires: {TODAY}\n---\nThe shop sells tea\n", f"The yard is closed until {TODAY}\n"
    for name, text in zip(("shop.md", "yard.md"), lines, strict=True):
        write_file(tmp_path, f"notes/{name}", text)
    shop, yard = cli.run_for_document("import", str(tmp_path / "notes"))["imported"]
    day = str(TODAY)
    for path, keys in (
        *((dated, (None, day)), (hidden, (day, None)), (sauna["path"], (None, day))),
        *((bar["path"], (day, None)), (court["path"], (None, None)), (track["path"], (None, "2026-11-27"))),
        *((shop["path"], (day, None)), (yard["path"], (None, day))),
    ):
        assert read_dates(cli, path) == keys, path
        query = parse(cli.run_for_document("show", path)["content"]).body.strip()
        found = {each["path"]: each for each in cli.run_for_document("recall", query)["entries"]}
        assert path in found, path
        assert ("ended" in found[path]) == (path == track["path"] and date(2026, 11, 27) < TODAY)


def test_ls_lists_ended_entry_and_expired_one_only_with_all(cli, roots):
    write_file(roots["user"], "over.md", f"---\nends: {PAST}\n---\nThe gym is closed\n")
    write_file(roots["user"], "gone.md", f"---\nexpires: {PAST}\n---\nThe bar is closed\n")
    listing = cli.run_for_document("ls")
    assert (read_paths(listing), listing["expired"]) == ({"user/over.md"}, 1)
    assert read_paths(cli.run_for_document("ls", "--all")) == {"user/over.md", "user/gone.md"}
    assert read_paths(cli.run_for_document("ls", "user/gone.md")) == set()
    text = cli("ls").output
    assert f"ended on {PAST}" in text
    assert "1 expired" in text
    (found,) = cli.run_for_document("recall", "is the gym closed")["entries"]
    assert (found["path"], found["ended"]) == ("user/over.md", str(PAST))
    assert cli.run_for_document("recall", "is the bar closed")["entries"] == []
    (found,) = cli.run_for_records("recall", "is the gym closed")
    assert found.text.endswith(f" (ended on {PAST})")


def test_dream_names_ended_entry_and_undo_restores_expired_one(cli, roots):
    write_file(roots["user"], "over.md", f"---\nends: {PAST}\n---\nThe gym is closed\n")
    expired = f"---\nexpires: {PAST}\n---\nThe bar is closed\n"
    write_file(roots["user"], "gone.md", expired)
    output = cli("dream").output
    handle = next(each["handle"] for each in cli.run_for_document("ls")["entries"])
    assert f'ended, according to its text: "over" (user, {handle}' in output
    assert "muniment forget HANDLE" in output
    done = cli.run_for_document("dream", "--yes")
    assert (done["ended_entries"], done["expired_entries"]) == (["user/over.md"], ["user/gone.md"])
    assert (roots["user"] / "over.md").read_text() == f"---\nends: {PAST}\n---\nThe gym is closed\n"
    assert not (roots["user"] / "gone.md").exists()
    cli.run_for_document("undo", done["task_id"])
    assert (roots["user"] / "gone.md").read_text() == expired
