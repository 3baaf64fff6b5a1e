"""`muniment export`, `backup`, `restore`: identical bytes, one moment, no trust in forged files."""

import io
import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

import muniment
from kit import sources
from kit.cli.commands import run_in_process
from kit.git import create_repository
from kit.memories import take_snapshot, write_file
from muniment.errors import ManagedMemoryUnavailable
from muniment.kernel.cancel import Deadline
from muniment.transfer import backup as backing

FACTS = ["The user prefers dark mode in all editors", "The project pins pnpm to version 9", "My name is Ana"]


class Home:
    """Runs commands in its own home, with a repository as workspace."""

    def __init__(self, base, name):
        self.path, self.work = base / name, base / "work"
        (self.work / ".git").mkdir(parents=True, exist_ok=True)

    def __call__(self, *arguments, code=0, **environment):
        has_workspace = arguments[0] not in {"backup", "restore", "audit"}
        line = [*map(str, arguments), *([f"--workspace={self.work}"] if has_workspace else [])]
        env = {"MUNIMENT_HOME": str(self.path), **environment}
        done = run_in_process(line, env)
        assert done.exit_code == code, done.output
        return done

    def document(self, *arguments, **more):
        return json.loads(self(*arguments, "--json", **more).stdout)

    def tree(self):
        """Return the bytes of every file of the memory, by its path in the home."""
        files = [path for top in ("user", "projects") for path in (self.path / top).rglob("*.md")]
        return {str(path.relative_to(self.path)): path.read_bytes() for path in files}


@pytest.fixture
def home(tmp_path):
    """Create a home with facts: of the owner, of an agent, and one written manually."""
    made = Home(tmp_path, "home")
    for fact in FACTS:
        made("remember", fact)
    made("import", sources.write_mem0(tmp_path))
    write_file(made.path / "user", "by-hand.md", "The kettle is blue.\n")
    made("index", "rebuild")
    return made


@pytest.fixture
def other(tmp_path):
    return Home(tmp_path, "elsewhere/other")


# -- export --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tar", "jsonl"])
def test_export_import_roundtrip_is_identical(home, other, tmp_path, kind):
    first, second = tmp_path / f"a.{kind}", tmp_path / f"b.{kind}"
    assert home.document("export", "--to", first)["entries"] == 7
    assert first.stat().st_mode & 0o777 == 0o600
    done = other.document("import", first, "--trust=owner")
    assert (done["format"], done["counts"]["imported"], done["counts"]["refused"]) == ("muniment", 7, 0)
    other("export", "--to", second)
    assert second.read_bytes() == first.read_bytes()
    assert other.tree() == home.tree(), "the generated indexes too"
    trusts = [
        {each["path"]: each["trust"] for each in each_home.document("ls")["entries"]}
        for each_home in (home, other)
    ]
    assert trusts[0] == trusts[1]
    assert other.document("import", first, "--trust=owner")["counts"]["known"] == 7
    assert kind == "tar" or home("export", "--to", "-").stdout.encode() == first.read_bytes()
    other("undo", done["task_ids"][0])
    assert other.document("ls")["entries"] == []


def test_import_of_owner_export_has_agent_trust_by_default(home, other, tmp_path):
    home("export", "--to", tmp_path / "a.tar")
    output = other("import", tmp_path / "a.tar").stdout
    assert "4 entries claim more trust than agent" in output
    assert {each["trust"] for each in other.document("ls")["entries"]} == {"agent"}
    path = next(each["path"] for each in other.document("ls")["entries"] if "dark" in each["path"])
    assert '"trust": "agent"' in other.document("show", path)["content"]


def test_export_overwrites_nothing_and_names_skipped_files(home, tmp_path):
    existing = write_file(tmp_path, "there.tar", "mine\n")
    for target in (existing, tmp_path / "a.zip", tmp_path / "missing" / "a.tar"):
        assert home.document("export", "--to", target, code=1)["error"]["code"] == "config_invalid"
    assert existing.read_text() == "mine\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "mem0.json", "there.tar", "work"]
    (home.path / "user" / "latin.md").write_bytes(b"\xe9t\xe9\n")
    (home.path / "user" / "link.md").symlink_to(existing)
    notes = " ".join(home.document("export", "--to", tmp_path / "a.jsonl")["notes"])
    assert "user/latin.md" in notes
    assert "user/link.md" in notes
    home("export", "--to", tmp_path / "a.tar", "--scope=user")
    with tarfile.open(tmp_path / "a.tar") as archive:
        names = archive.getnames()
    assert {name.split("/")[0] for name in names[1:]} == {"user"}
    assert not [name for name in names if "MEMORY" in name or "link" in name]


# -- backup --------------------------------------------------------------------------------------------


def test_backup_restores_history_trust_and_configuration(home, other, tmp_path):
    outside = tmp_path / "team"
    outside.mkdir(mode=0o700)
    write_file(
        home.path, "config.toml", f'# mine\npolicy = "strict"\n[roots]\nuser = "{outside}"  # shared\n'
    )
    write_file(home.path / "policies", "own.toml", "x = 1\n")
    (project,) = (home.path / "projects").iterdir()
    write_file(project, "project.json", "{}\n")
    home("remember", "Likes green tea", "--scope=user")
    task = home.document("history")["steps"][0]["task"]
    file = tmp_path / "all.backup"
    made = home.document("backup", file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert made["outside"] == ["user"]
    assert made["head"] == home.document("audit", "head")["head"]
    done = other.document("restore", file)
    assert (done["head"], done["files"]) == (made["head"], made["files"])
    assert other.document("audit", "verify")["whole"]
    assert other.document("index", "verify")["correct"]
    entries, restored_entries = home.document("ls")["entries"], other.document("ls")["entries"]
    assert entries == restored_entries != []
    assert (other.path / "restored" / "user" / "MEMORY.md").exists()
    assert (other.path / "config.toml").read_text() == (
        f'# mine\npolicy = "strict"\n[roots]\nuser = "{other.path}/restored/user"  # shared\n'
    )
    assert (other.path / "policies" / "own.toml").read_text() == "x = 1\n"
    assert (other.path / "projects" / project.name / "project.json").read_text() == "{}\n"
    assert not (other.path / "state" / "token").exists()
    modes = {path.stat().st_mode & 0o077 for path in other.path.rglob("*") if "state" not in path.parts}
    assert modes == {0}
    assert other.document("history")["steps"] == home.document("history")["steps"]
    other("undo", task)
    assert len(other.document("ls")["entries"]) == len(entries) - 1
    assert outside.joinpath("MEMORY.md").exists(), "the original is unchanged"


def test_restored_home_finds_renamed_checkout(tmp_path):
    home, other = Home(tmp_path, "home"), Home(tmp_path, "other")
    home.work = create_repository(tmp_path / "project")
    home("remember", "The project pins pnpm to version 9", "--scope=project")
    home("backup", tmp_path / "a")
    other("restore", tmp_path / "a")
    other.work = home.work.rename(tmp_path / "renamed")
    (entry,) = [each["path"] for each in other.document("ls")["entries"]]
    assert entry.startswith("project/")


def test_backup_includes_root_bound_inside_home(home, other, tmp_path):
    (home.path / "mine").mkdir(mode=0o700)
    write_file(home.path, "config.toml", f"roots = {{user = '{home.path}/mine'}}\n")
    home("remember", "Likes green tea", "--scope=user")
    home("backup", tmp_path / "a")
    other("restore", tmp_path / "a")
    assert other.document("ls")["entries"] == home.document("ls")["entries"]
    assert other.document("index", "verify")["correct"]


def test_backup_includes_project_created_at_start(home, other, tmp_path, monkeypatch):
    real_copy, second = backing._copy_ledger, Home(tmp_path / "second", "unused")

    def copy_after_new_project(state, path):
        monkeypatch.setattr(backing, "_copy_ledger", real_copy)
        second.path = home.path
        second("remember", "The project pins node to version 22", "--scope=project")
        real_copy(state, path)

    monkeypatch.setattr(backing, "_copy_ledger", copy_after_new_project)
    home("backup", tmp_path / "a")
    other("restore", tmp_path / "a")
    assert len(list((other.path / "projects").iterdir())) == 2
    assert other.tree() == home.tree()


def test_backup_fails_on_unreadable_file_but_not_on_missing(home, other, tmp_path, monkeypatch):
    real_add = backing._Archive._add_regular_file

    def fail_with(problem):
        def add(self, shown, name, folder):
            if name == "by-hand.md":
                raise problem
            real_add(self, shown, name, folder)

        return add

    monkeypatch.setattr(
        backing._Archive, "_add_regular_file", fail_with(PermissionError(13, "Permission denied"))
    )
    error = home.document("backup", tmp_path / "a", code=1)["error"]
    assert "by-hand.md" in error["message"]
    monkeypatch.setattr(backing._Archive, "_add_regular_file", fail_with(FileNotFoundError(2, "gone")))
    home("backup", tmp_path / "a")
    other("restore", tmp_path / "a")
    assert not (other.path / "user" / "by-hand.md").exists()


def test_restore_on_full_disk_leaves_no_home(home, other, tmp_path, monkeypatch):
    home("backup", tmp_path / "a")

    def fail_to_write(*_):
        raise OSError(28, "No space left on device")

    def fail_to_create(path):
        if path.name == "user":
            raise ManagedMemoryUnavailable(str(path), "No space left on device")
        real_create(path)

    real_create = backing.create_private_directory

    for name, fails in (("_write_member", fail_to_write), ("create_private_directory", fail_to_create)):
        with monkeypatch.context() as patch:
            patch.setattr(backing, name, fails)
            error = other.document("restore", tmp_path / "a", code=1)["error"]
        assert error["code"] == "managed_memory_unavailable"
        assert "No space left on device" in error["message"]
        assert not other.path.exists()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_FULL, "/a cannot be written: No space left on device"),
        (sqlite3.SQLITE_IOERR, "/home/state/ledger.db: "),
    ],
)
def test_backup_on_full_disk_names_target_not_ledger(home, tmp_path, monkeypatch, code, expected):
    class Failing(sqlite3.Connection):
        def execute(self, *_):
            error = sqlite3.OperationalError("it fails")
            error.sqlite_errorcode, error.sqlite_errorname = code, "SQLITE"
            raise error

    def fake_connect(path, **more):
        return real_connect(path, **(more or {"factory": Failing}))

    real_connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", fake_connect)
    message = home.document("backup", tmp_path / "a", code=1)["error"]["message"]
    assert message.startswith(f"{tmp_path}{expected}")


@pytest.mark.parametrize(
    "config",
    ['["roots"]\n"user" = """{}"""\n', "[roots]\nuser = '{}'\n[x]\nuser = '{}'\n", "roots = 3\n"],
)
def test_restore_leaves_ambiguous_config_binding_to_user(tmp_path, config):
    (tmp_path / "team").mkdir(mode=0o700)
    write_file(tmp_path / "beside", "config.toml", config.format(tmp_path / "team", "y"))
    done = backing.BackupSummary()
    write_file(tmp_path / "beside", "restored/user/a.md")
    backing._rebind_roots(tmp_path / "beside", tmp_path / "new", done, Deadline(math.inf))
    assert done.notes == [f'add to config.toml: [roots] user = "{tmp_path}/new/restored/user"']
    assert (tmp_path / "beside" / "config.toml").read_text() == config.format(tmp_path / "team", "y")


def test_backup_skips_and_names_special_files(home, other, tmp_path):
    (home.path / "user" / "link").symlink_to("/etc/passwd")
    os.mkfifo(home.path / "user" / "pipe")
    os.link(home.path / "user" / "by-hand.md", tmp_path / "second-name")
    notes = " ".join(home.document("backup", tmp_path / "a")["notes"])
    assert all(name in notes for name in ("user/link", "user/pipe", "user/by-hand.md"))
    other("restore", tmp_path / "a")
    assert not os.path.lexists(other.path / "user" / "link")


@pytest.mark.parametrize("target", [".", "/", ""])
def test_backup_without_file_name_is_rejected(home, target):
    assert home.document("backup", target, code=1)["error"]["code"] == "config_invalid"


def test_restore_replaces_nothing(home, other, tmp_path):
    home("backup", tmp_path / "a")
    write_file(other.path, "mine.txt", "mine\n")
    before = take_snapshot(tmp_path)
    assert other.document("restore", tmp_path / "a", code=1)["error"]["code"] == "config_invalid"
    assert take_snapshot(tmp_path) == before
    (other.path / "mine.txt").unlink()
    assert other.document("restore", tmp_path / "a")["files"] > 0
    assert home.document("backup", tmp_path / "a", code=1)["error"]["code"] == "config_invalid"


def rewrite_backup(source, target, change):
    """Copy a backup with changed members: `change` receives the members and their bytes."""
    with tarfile.open(source) as archive:
        members = [(member, archive.extractfile(member).read()) for member in archive]
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for member, content in change(members):
            member.size = len(content) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(content))
    return target


def make_member(name, kind=tarfile.REGTYPE, **more):
    member = tarfile.TarInfo(name)
    member.type = kind
    for key, value in more.items():
        setattr(member, key, value)
    return member


def add_manifest(members):
    """Add a manifest that lists all members, as an attacker would."""
    import hashlib

    *files, (last, content) = members
    manifest = json.loads(content)
    manifest["files"] = {
        member.name: [len(data), hashlib.sha256(data).hexdigest()] for member, data in files if member.isreg()
    }
    return [*files, (last, json.dumps(manifest).encode())]


def add_members(*more):
    return lambda members: add_manifest([*members[:-1], *more, members[-1]])


def replace_content(name, content):
    return lambda members: [(m, content if m.name == name else data) for m, data in members]


HOSTILE = {
    "traversal": add_members((make_member("home/user/../../../evil.md"), b"x")),
    "absolute": add_members((make_member("/home/user/evil.md"), b"x")),
    "elsewhere": add_members((make_member("state/token"), b"x")),
    "no-known-place": add_members((make_member("home/state/ledger.db"), b"x")),
    "empty-name": add_members((make_member("home/user//a.md"), b"x")),
    "link": add_members((make_member("home/user/l.md", tarfile.SYMTYPE, linkname="/etc/passwd"), b"")),
    "link-folder": add_members(
        (make_member("home/user/d", tarfile.SYMTYPE, linkname="/"), b""), (make_member("home/user/d/x"), b"")
    ),
    "hard-link": add_members(
        (make_member("home/user/h.md", tarfile.LNKTYPE, linkname="state/audit.key"), b"")
    ),
    "device": add_members((make_member("home/user/dev", tarfile.CHRTYPE, devmajor=1, devminor=3), b"")),
    "fifo": add_members((make_member("home/user/fifo", tarfile.FIFOTYPE), b"")),
    "folder": add_members((make_member("home/user/folder", tarfile.DIRTYPE), b"")),
    "broken-projects": lambda members: add_manifest(replace_content("home/projects.json", b"[]")(members)),
    "twice": add_members((make_member("home/user/by-hand.md"), b"other")),
    "below-a-file": add_members((make_member("home/user/by-hand.md/x.md"), b"x")),
    "above-a-file": add_members((make_member("home/user"), b"x")),
    "sparse": add_members(
        (make_member("home/user/s", pax_headers={"GNU.sparse.map": "0,1", "GNU.sparse.size": "1" * 9}), b"x")
    ),
    "long-header": add_members((make_member("home/user/p", pax_headers={"comment": "x" * 200_000}), b"x")),
    "deep": add_members((make_member("home/user/" + "d/" * 80 + "x.md"), b"x")),
    "changed-bytes": replace_content("home/user/by-hand.md", b"The kettle is red!!\n"),
    "changed-ledger": replace_content("state/ledger.db", b"SQLite format 3\0" + b"x" * 4_000),
    "empty-ledger": lambda members: add_manifest(replace_content("state/ledger.db", b"")(members)),
    "half-a-character": lambda members: [
        *members[:-1],
        (members[-1][0], json.dumps(json.loads(members[-1][1]) | {"home": "\ud800"}).encode()),
    ],
    "lying-ledger": lambda members: add_manifest(replace_content("state/ledger.db", b"x" * 9_000)(members)),
    "other-key": lambda members: add_manifest(replace_content("state/audit.key", b"k" * 32)(members)),
    "no-ledger": lambda members: add_manifest(
        [each for each in members if each[0].name != "state/ledger.db"]
    ),
    "one-less": lambda members: [each for each in members if each[0].name != "home/user/by-hand.md"],
    "no-manifest": lambda members: members[:-1],
    "behind": lambda members: [*members, (make_member("home/user/evil.md"), b"x")],
    "no-json": replace_content(backing.MANIFEST, b"[" * 100_000),
    "list": replace_content(backing.MANIFEST, b"[]"),
    "files-none": replace_content(
        backing.MANIFEST, json.dumps({"format": backing.FORMAT, "files": 7}).encode()
    ),
    "roots-outside": lambda members: [
        *members[:-1],
        (members[-1][0], json.dumps(json.loads(members[-1][1]) | {"roots": {"../x": "/tmp"}}).encode()),
    ],
}


@pytest.mark.threat("T-PATH-18", control="restored_names")
@pytest.mark.threat("T-PATH-18", control="restored_digests")
def test_restore_rejects_forged_backup_and_leaves_nothing(home, other, tmp_path):
    home("backup", tmp_path / "a")
    (tmp_path / "elsewhere").mkdir()
    before, results = take_snapshot(tmp_path / "elsewhere", tmp_path / "home").keys(), {}
    for name, change in HOSTILE.items():
        rewrite_backup(tmp_path / "a", tmp_path / "b", change)
        error = other.document("restore", tmp_path / "b", code=1)["error"]
        assert take_snapshot(tmp_path / "elsewhere", tmp_path / "home").keys() == before, name
        results[name] = error["code"], error["message"].endswith("nothing was restored")
    assert results == dict.fromkeys(HOSTILE, ("config_invalid", True))
    honest = rewrite_backup(
        tmp_path / "a", tmp_path / "b", add_members((make_member("home/user/more.md"), b"More.\n"))
    )
    assert other.document("restore", honest)["files"] > 0, "only the forged part is the reason"


def test_restore_rejects_truncated_backup(home, other, tmp_path):
    home("backup", tmp_path / "a")
    whole = (tmp_path / "a").read_bytes()
    for size in (0, 1, 511, 512, 513, len(whole) // 2, len(whole) - 11_000):
        write_file(tmp_path, "b", whole[:size])
        assert other.document("restore", tmp_path / "b", code=1)["error"]["code"] == "config_invalid"
    assert not other.path.exists()


WRITER = """
import sys, time
import muniment
with muniment.open(sys.argv[1], policy=sys.argv[2], in_process=True) as memory:
    began = time.monotonic()
    for number in range(10_000):
        path = memory.remember(f"Service {number} listens on port {number}").files_touched[0]
        print(f"{time.time_ns()} {path}", flush=True)
        time.sleep(max(0, 0.05 * (number + 1) - (time.monotonic() - began)))  # Twenty per second.
"""


@pytest.mark.slow
def test_backup_during_writes_contains_acknowledged_commits(home, other, tmp_path):
    env = os.environ | {"MUNIMENT_HOME": str(home.path)}
    text = (Path(muniment.__file__).with_name("policies") / "strict.toml").read_text()
    text = text.replace('name = "strict"', 'name = "none"').replace('require = "partial"', 'require = "none"')
    command = [sys.executable, "-c", WRITER, str(home.work), str(write_file(tmp_path, "none.toml", text))]
    writer = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    try:
        lines = [writer.stdout.readline() for _ in range(40)]
        backup_time = time.time_ns()
        made = home.document("backup", tmp_path / "a")
        later = [writer.stdout.readline() for _ in range(5)]
    finally:
        writer.send_signal(signal.SIGKILL)
        lines += writer.communicate()[0].splitlines()
    acknowledged = {
        line.split()[1] for line in [*lines, *later] if line and int(line.split()[0]) < backup_time
    }
    assert len(acknowledged) >= 40
    other("restore", tmp_path / "a")
    assert other.document("audit", "verify")["whole"]
    assert other.document("index", "verify")["correct"]
    paths = {each["path"] for each in other.document("ls")["entries"]}
    assert acknowledged <= paths
    assert made["notes"] == []
    committed = {each["path"] for each in other.document("history")["steps"]}
    assert committed == paths - {"user/by-hand.md"}, "every file has a commit and every commit its file"


def test_backup_prints_head_of_its_own_ledger(home, other, tmp_path, monkeypatch):
    """Another task commits while the backup is made."""
    real_finish = backing._Archive.finish

    def finish_after_commit(*arguments):
        home("remember", "The user whistles")
        return real_finish(*arguments)

    monkeypatch.setattr(backing._Archive, "finish", finish_after_commit)
    made = home.document("backup", tmp_path / "a")
    assert other.document("restore", tmp_path / "a")["head"] == made["head"]


def test_backup_target_needs_no_write_ahead_log(home, tmp_path, monkeypatch):
    """On a share, SQLite must not need features that the file system lacks."""
    statements, real_connect = [], sqlite3.connect

    def tracing_connect(path, *arguments, **more):
        connection = real_connect(path, *arguments, **more)
        if str(tmp_path / "share") in str(path):
            connection.set_trace_callback(statements.append)
        return connection

    (tmp_path / "share").mkdir()
    monkeypatch.setattr(sqlite3, "connect", tracing_connect)
    home("backup", tmp_path / "share" / "a")
    assert statements
    assert [each for each in statements if "wal" in each.lower()] == []


def test_backup_and_restore_name_leftovers_of_killed_runs(home, other, tmp_path):
    leftovers = [
        tmp_path / ".a[1]**.bak.0badcafe.unfinished",
        other.path.parent / ".other.0badcafe.restoring",
    ]
    for each in leftovers:
        each.mkdir(parents=True)
    made = home.document("backup", tmp_path / "a[1]**.bak")
    restored = other.document("restore", tmp_path / "a[1]**.bak")
    assert [len(each["notes"]) for each in (made, restored)] == [1, 1]
    assert str(leftovers[0]) in made["notes"][0]
    assert str(leftovers[1]) in restored["notes"][0]
    assert all(each.exists() for each in leftovers)


def test_cancelled_restore_leaves_nothing(home, other, tmp_path, monkeypatch):
    home("backup", tmp_path / "a")
    real_put = backing._write_member

    def put_and_interrupt(*arguments):
        signal.raise_signal(signal.SIGINT)
        return real_put(*arguments)

    monkeypatch.setattr(backing, "_write_member", put_and_interrupt)
    assert other.document("restore", tmp_path / "a", code=130)["error"]["code"] == "cancelled"
    assert list(other.path.parent.iterdir()) == []


def test_interrupted_backup_leaves_no_file(home, tmp_path, monkeypatch):
    def fail_to_finish(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backing._Archive, "finish", fail_to_finish)
    error = home.document("backup", tmp_path / "a", code=1)["error"]
    assert "No space left on device" in error["message"]
    monkeypatch.setattr(backing._Archive, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    home("backup", tmp_path / "a", code=130)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "mem0.json", "work"]
    assert (
        Home(tmp_path, "none").document("backup", tmp_path / "a", code=1)["error"]["code"] == "config_invalid"
    )
