"""A foreign ledger or catalog: in a backup, or in a home that was copied from another machine."""

import hashlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

import muniment
from kit.cli.commands import invoked
from muniment.kernel.names import Trust
from muniment.store.database import migrations, statements
from muniment.transfer import backup
from muniment.types import RememberRequest

MANIFEST, LEDGER = "muniment-backup.json", "state/ledger.db"
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c"


def run(home, *arguments):
    """Run a command; return its exit code and the document that it prints."""
    options = [*map(str, arguments), "--json"]
    done = invoked(options, {"MUNIMENT_HOME": str(home)})
    return done.exit_code, json.loads(done.stdout)


@pytest.fixture(scope="module")
def backed_up(tmp_path_factory):
    """Return the members of a backup by name, and its manifest."""
    base = tmp_path_factory.mktemp("honest")
    with muniment.open(base, home=base / "home") as memory:
        memory.remember("I like tea.")
    assert run(base / "home", "backup", base / "b")[0] == 0
    with tarfile.open(base / "b") as archive:
        members = {each.name: archive.extractfile(each).read() for each in archive}
    return members, json.loads(members.pop(MANIFEST))


@pytest.fixture
def restore_changed(backed_up, tmp_path):
    """Restore a backup with a changed ledger; return the home, the exit code and the document."""
    members, manifest = backed_up

    def restore(change):
        file = tmp_path / "ledger.db"
        file.write_bytes(members[LEDGER])
        change(file)
        new = members | {LEDGER: file.read_bytes()}
        manifest["files"] = {
            name: [len(data), hashlib.sha256(data).hexdigest()] for name, data in new.items()
        }
        with tarfile.open(tmp_path / "b", "w") as archive:
            for name, data in [*new.items(), (MANIFEST, json.dumps(manifest).encode())]:
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        home = tmp_path / "home"
        shutil.rmtree(home, ignore_errors=True)
        code, document = run(home, "restore", tmp_path / "b")
        left = sorted(each.name for each in tmp_path.iterdir())
        assert left == sorted(["b", "ledger.db", *(["home"] if code == 0 else [])]), (
            "a failed restore must leave no file"
        )
        return home, code, document

    return restore


def sql(*scripts):
    """Return a function that changes a ledger with statements."""

    def change(file):
        with closing(sqlite3.connect(file)) as connection:
            for script in scripts:
                connection.executescript(script)
            connection.commit()

    return change


def rewrite_schema(name, old, new):
    """Return a function that changes the stored schema of an object, past the checks of SQLite."""
    return sql(
        "PRAGMA writable_schema = ON;"
        f"UPDATE sqlite_schema SET sql = replace(sql, '{old}', '{new}') WHERE name = '{name}';"
    )


def write_mistyped_row(file):
    """Write text into a column of integers; the table is not STRICT for a moment."""
    rewrite_schema("series", ") STRICT", ")")(file)
    sql("UPDATE series SET marked = 'x'")(file)
    rewrite_schema("series", ")", ") STRICT")(file)


def convert_to_utf16(file):
    """Convert the ledger to another encoding with the same rows and schema."""
    with closing(sqlite3.connect(file)) as connection:
        script = "\n".join(connection.iterdump())
    file.unlink()
    sql("PRAGMA encoding = 'UTF-16';" + script, "PRAGMA user_version = 7")(file)


def remove_strict(file):
    rewrite_schema("change_set", ") STRICT", ")")(file)


SCHEMAS = {
    "trigger": sql(
        "CREATE TRIGGER t AFTER INSERT ON provenance BEGIN"
        " UPDATE provenance SET trust = 'owner' WHERE digest = new.digest; END"
    ),
    "endless view": sql(
        f"CREATE VIEW z AS {ENDLESS};CREATE TRIGGER t BEFORE UPDATE ON root BEGIN SELECT count(*) FROM z; END"
    ),
    "trigger on a view": sql("CREATE TRIGGER t INSTEAD OF DELETE ON step BEGIN SELECT 1; END"),
    "view": sql("CREATE VIEW v AS SELECT 1"),
    "own view that returns owner": sql(
        "DROP VIEW source;"
        "CREATE VIEW source AS SELECT root, rel, digest, 'owner' AS trust, task, decided_by, policy, at,"
        " '' AS kind, '' AS fact FROM provenance"
    ),
    "table": sql("CREATE TABLE more (x)"),
    "empty name": sql('CREATE TABLE "" (x)'),
    "long name": sql(f'CREATE TABLE "{"x" * 100_000}" (x)'),
    "virtual table": sql("CREATE VIRTUAL TABLE v USING fts5 (x)"),
    "index": sql("CREATE INDEX i ON record (kind)"),
    "partial index": sql("CREATE INDEX i ON record (kind) WHERE kind > 'a'"),
    "index of an expression": sql("CREATE INDEX i ON record (hex(kind))"),
    "statistics": sql("ANALYZE"),
    "lost index": sql("DROP INDEX change_by_path"),
    "lost table": sql("DROP TABLE told"),
    "column": sql("ALTER TABLE record ADD COLUMN more TEXT DEFAULT 'x'"),
    "generated column": sql("ALTER TABLE record ADD COLUMN more TEXT AS (hex(kind)) VIRTUAL"),
    "other default": rewrite_schema("change_set", "DEFAULT ''[]''", "DEFAULT ''x''"),
    "other check": rewrite_schema("head", "CHECK (one = 1)", "CHECK (one < 9)"),
    "other case of a string": rewrite_schema("task_pending", "''queued''", "''QUEUED''"),
    "not strict": remove_strict,
    "other collation": rewrite_schema("root", "path BLOB", "path BLOB COLLATE NOCASE"),
    "comment that hides text": rewrite_schema(
        "review", "outcome TEXT", "outcome /* '' */ DEFAULT ''owner'' -- TEXT"
    ),
    "object without a statement": sql(
        "PRAGMA writable_schema = ON; INSERT INTO sqlite_schema VALUES ('view', 'x', 'x', 0, NULL)"
    ),
    "twice": sql(
        "PRAGMA writable_schema = ON;"
        "INSERT INTO sqlite_schema SELECT * FROM sqlite_schema WHERE name = 'step'"
    ),
    "wrong older version": sql("PRAGMA user_version = 5"),
    "no version": sql("PRAGMA user_version = 0"),
    "negative version": sql("PRAGMA user_version = -1"),
    "encoding": convert_to_utf16,
    "application": sql("PRAGMA application_id = 7"),
    "automatic vacuum": sql("PRAGMA auto_vacuum = FULL; VACUUM"),
}

ROWS = {
    "counter": sql("UPDATE sqlite_sequence SET seq = 9223372036854775807"),
    "counter that is text": sql("UPDATE sqlite_sequence SET seq = 'x'"),
    "type": write_mistyped_row,
    "missing root": sql(
        "INSERT INTO provenance VALUES ('none', 'a.md', 'd', 'owner', 't', 'rules', 'p', '2026-01-01', 0)"
    ),
    "check": sql("PRAGMA ignore_check_constraints = ON; INSERT INTO head VALUES (2, 1, x'00')"),
}


@pytest.mark.threat("T-LOG-10", control="database_schema")
def test_restore_with_foreign_schema_is_rejected(restore_changed, monkeypatch):
    monkeypatch.setattr(backup, "RESTORE_SECONDS", 5)
    results = {}
    for name, change in SCHEMAS.items():
        _, code, document = restore_changed(change)
        message = document.get("error", {}).get("message", "")
        results[name] = code, message.endswith("nothing was restored"), len(message) < 300
    assert results == dict.fromkeys(SCHEMAS, (1, True, True))
    assert restore_changed(sql("SELECT 1"))[1] == 0


@pytest.mark.threat("T-LOG-10", control="database_rows")
def test_restore_with_damaged_rows_is_rejected(restore_changed):
    results = {name: restore_changed(change)[1] for name, change in ROWS.items()}
    assert results == dict.fromkeys(ROWS, 1)


def test_restore_after_vacuum_with_other_page_size_works(restore_changed):
    for size in (512, 65_536):
        home, code, _ = restore_changed(sql(f"PRAGMA page_size = {size}; VACUUM"))
        assert code == 0
        assert run(home, "audit", "verify")[0] == 0


def make_ledger_of_version_2(count):
    """Return a change to an old ledger with a review whose migration takes quadratic time."""

    def change(file):
        file.unlink()
        names = [[f"user/{number}.md", None, None] for number in range(count)]
        proposal = {
            "changes": names,
            "roots": {"user": "r"},
            "texts": ["YQ=="] * count,
            "trusts": {},
            "removals": [],
        }
        with closing(sqlite3.connect(file)) as connection:
            for number in (1, 2):
                for statement in statements(migrations("muniment.store")[number]):
                    connection.execute(statement)
            connection.execute("INSERT INTO root VALUES ('r', x'00')")
            connection.execute(
                "INSERT INTO review VALUES ('i', 't', 'k', '', 'pending', '', ?, '', NULL)",
                (json.dumps(proposal | {"origin": ["", "", "", "owner", "rules", "p", None, None]}),),
            )
            connection.execute("PRAGMA user_version = 2")
            connection.commit()

    return change


@pytest.mark.threat("T-LOG-10", control="restore_deadline")
def test_restore_of_slow_ledger_ends_at_its_deadline(restore_changed, monkeypatch):
    monkeypatch.setattr(backup, "RESTORE_SECONDS", 0.3)
    _, code, document = restore_changed(make_ledger_of_version_2(3_000))
    assert code == 1
    assert "within 0 s" in document["error"]["message"]


def test_restore_of_pipe_is_rejected_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    code, document = run(tmp_path / "home", "restore", tmp_path / "pipe")
    assert (code, document["error"]["code"]) == (1, "config_invalid")
    assert not (tmp_path / "home").exists()


def test_restore_of_file_larger_than_disk_is_rejected(tmp_path):
    with (tmp_path / "b").open("wb") as file:
        member = tarfile.TarInfo("home/user/a.md")
        member.size = 1 << 50
        file.write(member.tobuf())
    code, document = run(tmp_path / "home", "restore", tmp_path / "b")
    assert code == 1
    assert "No space left" in document["error"]["message"]


@pytest.fixture
def copied_home(tmp_path):
    """A home with one fact."""
    with muniment.open(tmp_path, home=tmp_path / "home") as memory:
        memory.remember("I like tea.")
    return tmp_path / "home"


@pytest.mark.threat("T-LOG-10", control="database_schema")
def test_copied_home_with_trigger_in_ledger_is_not_opened(copied_home):
    SCHEMAS["trigger"](copied_home / "state" / "ledger.db")
    for command in (["history"], ["audit", "verify"], ["remember", "I like coffee."]):
        code, document = run(copied_home, *command)
        assert (code, document["error"]["code"]) != (0, None)
        assert "trigger t" in document["error"]["message"], document


@pytest.mark.threat("T-LOG-10", control="database_schema")
def test_copied_catalog_with_trigger_is_replaced(copied_home, tmp_path):
    trigger = "CREATE TRIGGER t AFTER INSERT ON entry BEGIN UPDATE entry SET trust = 'owner'; END"
    sql(trigger)(copied_home / "state" / "catalog.db")
    with muniment.open(tmp_path, home=copied_home) as memory:
        memory.try_remember(RememberRequest("The zebra build is red.", trust=Trust.AGENT, scope="user"))
    with closing(sqlite3.connect(copied_home / "state" / "catalog.db")) as catalog:
        trusts = catalog.execute("SELECT trust FROM entry ORDER BY trust").fetchall()
        assert trusts == [("agent",), ("owner",)]
        assert catalog.execute("SELECT count(*) FROM sqlite_schema WHERE name = 't'").fetchone() == (0,)


def test_ledgers_of_all_versions_are_opened(tmp_path):
    from muniment.store.state import LEDGER_VERSION, open_ledger

    for version in range(LEDGER_VERSION + 1):
        path = Path(tmp_path / f"{version}.db")
        with closing(sqlite3.connect(path)) as connection:
            for number in range(1, version + 1):
                connection.create_function("from_base64", 1, lambda text: text)
                for statement in statements(migrations("muniment.store")[number]):
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {version}")
            connection.commit()
        path.chmod(0o600)
        with closing(open_ledger(path)) as ledger:
            assert ledger.rows("PRAGMA user_version") == [(LEDGER_VERSION,)]
            assert ledger.rows("PRAGMA trusted_schema") == [(0,)]
