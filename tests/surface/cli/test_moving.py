"""`muniment export`, `backup`, `restore`: the same bytes again, one moment, nothing of a file that lies."""

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
from kit.cli.commands import invoked
from kit.git import repository
from kit.memories import photograph, put
from muniment.errors import ManagedMemoryUnavailable
from muniment.kernel.cancel import Patience
from muniment.transfer import backup as backing

FACTS = ["The user prefers dark mode in all editors", "The project pins pnpm to version 9", "My name is Ana"]


class Home:
    """A home of its own, with a workspace that is a repository, by the command line."""

    def __init__(self, base, name):
        self.path, self.work = base / name, base / "work"
        (self.work / ".git").mkdir(parents=True, exist_ok=True)

    def __call__(self, *arguments, code=0, **environment):
        placed = arguments[0] not in {"backup", "restore", "audit"}
        given = [*map(str, arguments), *([f"--workspace={self.work}"] if placed else [])]
        env = {"MUNIMENT_HOME": str(self.path), **environment}
        done = invoked(given, env)
        assert done.exit_code == code, done.output
        return done

    def document(self, *arguments, **more):
        return json.loads(self(*arguments, "--json", **more).stdout)

    def tree(self):
        """The bytes of every file of the memory, by its path in the home."""
        files = [path for top in ("user", "projects") for path in (self.path / top).rglob("*.md")]
        return {str(path.relative_to(self.path)): path.read_bytes() for path in files}


@pytest.fixture
def home(tmp_path):
    """A home that knows some facts, one of them by hand and one of an agent."""
    made = Home(tmp_path, "home")
    for fact in FACTS:
        made("remember", fact)
    made("import", sources.mem0(tmp_path))
    put(made.path / "user", "by-hand.md", "The kettle is blue.\n")
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
    trusts = [{each["path"]: each["trust"] for each in at.document("ls")["entries"]} for at in (home, other)]
    assert trusts[0] == trusts[1]
    assert other.document("import", first, "--trust=owner")["counts"]["known"] == 7
    assert kind == "tar" or home("export", "--to", "-").stdout.encode() == first.read_bytes()
    other("undo", done["task_ids"][0])
    assert other.document("ls")["entries"] == []


def test_import_of_owner_export_has_agent_trust_by_default(home, other, tmp_path):
    home("export", "--to", tmp_path / "a.tar")
    said = other("import", tmp_path / "a.tar").stdout
    assert "4 entries say that they are trusted more than agent" in said
    assert {each["trust"] for each in other.document("ls")["entries"]} == {"agent"}
    path = next(each["path"] for each in other.document("ls")["entries"] if "dark" in each["path"])
    assert '"trust": "agent"' in other.document("show", path)["content"]


def test_export_overwrites_nothing_and_names_skipped_files(home, tmp_path):
    there = put(tmp_path, "there.tar", "mine\n")
    for target in (there, tmp_path / "a.zip", tmp_path / "missing" / "a.tar"):
        assert home.document("export", "--to", target, code=1)["error"]["code"] == "config_invalid"
    assert there.read_text() == "mine\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "mem0.json", "there.tar", "work"]
    (home.path / "user" / "latin.md").write_bytes(b"\xe9t\xe9\n")
    (home.path / "user" / "link.md").symlink_to(there)
    notes = " ".join(home.document("export", "--to", tmp_path / "a.jsonl")["notes"])
    assert "user/latin.md" in notes
    assert "user/link.md" in notes
    home("export", "--to", tmp_path / "a.tar", "--scope=user")
    with tarfile.open(tmp_path / "a.tar") as archive:
        names = archive.getnames()
    assert {name.split("/")[0] for name in names[1:]} == {"user"}
    assert not [name for name in names if "MEMORY" in name or "link" in name]


# -- backup --------------------------------------------------------------------------------------------


def test_backup_restores_history_trust_and_configuration(
    home, other, tmp_path
):
    outside = tmp_path / "team"
    outside.mkdir(mode=0o700)
    put(home.path, "config.toml", f'# mine\npolicy = "strict"\n[roots]\nuser = "{outside}"  # shared\n')
    put(home.path / "policies", "own.toml", "x = 1\n")
    (project,) = (home.path / "projects").iterdir()
    put(project, "project.json", "{}\n")
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
    here, there = home.document("ls")["entries"], other.document("ls")["entries"]
    assert here == there != []
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
    assert len(other.document("ls")["entries"]) == len(here) - 1
    assert outside.joinpath("MEMORY.md").exists(), "where it was, it stays as it is"


def test_restored_home_finds_renamed_checkout(tmp_path):
    home, other = Home(tmp_path, "home"), Home(tmp_path, "other")
    home.work = repository(tmp_path / "project")
    home("remember", "The project pins pnpm to version 9", "--scope=project")
    home("backup", tmp_path / "a")
    other("restore", tmp_path / "a")
    other.work = home.work.rename(tmp_path / "renamed")
    (entry,) = [each["path"] for each in other.document("ls")["entries"]]
    assert entry.startswith("project/")


def test_backup_includes_root_bound_inside_home(home, other, tmp_path):
    (home.path / "mine").mkdir(mode=0o700)
    put(home.path, "config.toml", f"roots = {{user = '{home.path}/mine'}}\n")
    home("remember", "Likes green tea", "--scope=user")
    home("backup", tmp_path / "a")
    other("restore", tmp_path / "a")
    assert other.document("ls")["entries"] == home.document("ls")["entries"]
    assert other.document("index", "verify")["correct"]


def test_backup_includes_project_created_at_start(
    home, other, tmp_path, monkeypatch
):
    copied, second = backing._copy_ledger, Home(tmp_path / "second", "unused")

    def slowly(state, path):
        monkeypatch.setattr(backing, "_copy_ledger", copied)
        second.path = home.path
        second("remember", "The project pins node to version 22", "--scope=project")
        copied(state, path)

    monkeypatch.setattr(backing, "_copy_ledger", slowly)
    home("backup", tmp_path / "a")
    other("restore", tmp_path / "a")
    assert len(list((other.path / "projects").iterdir())) == 2
    assert other.tree() == home.tree()


def test_backup_fails_on_unreadable_file_but_not_on_missing(
    home, other, tmp_path, monkeypatch
):
    added = backing._Archive._add_plain

    def failing(problem):
        def add(self, shown, name, folder):
            if name == "by-hand.md":
                raise problem
            added(self, shown, name, folder)

        return add

    monkeypatch.setattr(backing._Archive, "_add_plain", failing(PermissionError(13, "Permission denied")))
    told = home.document("backup", tmp_path / "a", code=1)["error"]
    assert "by-hand.md" in told["message"]
    monkeypatch.setattr(backing._Archive, "_add_plain", failing(FileNotFoundError(2, "gone")))
    home("backup", tmp_path / "a")
    other("restore", tmp_path / "a")
    assert not (other.path / "user" / "by-hand.md").exists()


def test_restore_on_full_disk_leaves_no_home(home, other, tmp_path, monkeypatch):
    home("backup", tmp_path / "a")

    def full(*_):
        raise OSError(28, "No space left on device")

    def no_folder(path):
        if path.name == "user":
            raise ManagedMemoryUnavailable(str(path), "No space left on device")
        made(path)

    made = backing.create_private_directory

    for name, fails in (("_put", full), ("create_private_directory", no_folder)):
        with monkeypatch.context() as filled:
            filled.setattr(backing, name, fails)
            told = other.document("restore", tmp_path / "a", code=1)["error"]
        assert told["code"] == "managed_memory_unavailable"
        assert "No space left on device" in told["message"]
        assert not other.path.exists()


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (sqlite3.SQLITE_FULL, "/a cannot be written: No space left on device"),
        (sqlite3.SQLITE_IOERR, "/home/state/ledger.db: "),
    ],
)
def test_backup_on_full_disk_names_target_not_ledger(
    home, tmp_path, monkeypatch, code, told
):
    class Failing(sqlite3.Connection):
        def execute(self, *_):
            error = sqlite3.OperationalError("it fails")
            error.sqlite_errorcode, error.sqlite_errorname = code, "SQLITE"
            raise error

    def connected(path, **more):
        return connect(path, **(more or {"factory": Failing}))

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", connected)
    message = home.document("backup", tmp_path / "a", code=1)["error"]["message"]
    assert message.startswith(f"{tmp_path}{told}")


@pytest.mark.parametrize(
    "config",
    ['["roots"]\n"user" = """{}"""\n', "[roots]\nuser = '{}'\n[x]\nuser = '{}'\n", "roots = 3\n"],
)
def test_restore_leaves_ambiguous_config_binding_to_user(tmp_path, config):
    (tmp_path / "team").mkdir(mode=0o700)
    put(tmp_path / "beside", "config.toml", config.format(tmp_path / "team", "y"))
    done = backing.BackedUp()
    put(tmp_path / "beside", "restored/user/a.md")
    backing._bind_anew(tmp_path / "beside", tmp_path / "new", done, Patience(math.inf))
    assert done.notes == [f'bind it in config.toml: [roots] user = "{tmp_path}/new/restored/user"']
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
    put(other.path, "mine.txt", "mine\n")
    before = photograph(tmp_path)
    assert other.document("restore", tmp_path / "a", code=1)["error"]["code"] == "config_invalid"
    assert photograph(tmp_path) == before
    (other.path / "mine.txt").unlink()
    assert other.document("restore", tmp_path / "a")["files"] > 0
    assert home.document("backup", tmp_path / "a", code=1)["error"]["code"] == "config_invalid"


def remade(source, target, change):
    """A backup with other members: `change` is given what there are, by name, with their bytes."""
    with tarfile.open(source) as archive:
        members = [(member, archive.extractfile(member).read()) for member in archive]
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for member, content in change(members):
            member.size = len(content) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(content))
    return target


def named(name, kind=tarfile.REGTYPE, **more):
    member = tarfile.TarInfo(name)
    member.type = kind
    for key, value in more.items():
        setattr(member, key, value)
    return member


def with_manifest(members):
    """Members with a manifest that tells of them, as somebody would make one who wants them in."""
    import hashlib

    *others, (last, content) = members
    told = json.loads(content)
    told["files"] = {
        member.name: [len(data), hashlib.sha256(data).hexdigest()]
        for member, data in others
        if member.isreg()
    }
    return [*others, (last, json.dumps(told).encode())]


def adding(*more):
    return lambda members: with_manifest([*members[:-1], *more, members[-1]])


def changed(name, content):
    return lambda members: [(m, content if m.name == name else data) for m, data in members]


HOSTILE = {
    "traversal": adding((named("home/user/../../../evil.md"), b"x")),
    "absolute": adding((named("/home/user/evil.md"), b"x")),
    "elsewhere": adding((named("state/token"), b"x")),
    "no-known-place": adding((named("home/state/ledger.db"), b"x")),
    "empty-name": adding((named("home/user//a.md"), b"x")),
    "link": adding((named("home/user/l.md", tarfile.SYMTYPE, linkname="/etc/passwd"), b"")),
    "link-folder": adding(
        (named("home/user/d", tarfile.SYMTYPE, linkname="/"), b""), (named("home/user/d/x"), b"")
    ),
    "hard-link": adding((named("home/user/h.md", tarfile.LNKTYPE, linkname="state/audit.key"), b"")),
    "device": adding((named("home/user/dev", tarfile.CHRTYPE, devmajor=1, devminor=3), b"")),
    "fifo": adding((named("home/user/fifo", tarfile.FIFOTYPE), b"")),
    "folder": adding((named("home/user/folder", tarfile.DIRTYPE), b"")),
    "broken-projects": lambda members: with_manifest(changed("home/projects.json", b"[]")(members)),
    "twice": adding((named("home/user/by-hand.md"), b"other")),
    "below-a-file": adding((named("home/user/by-hand.md/x.md"), b"x")),
    "above-a-file": adding((named("home/user"), b"x")),
    "sparse": adding(
        (named("home/user/s", pax_headers={"GNU.sparse.map": "0,1", "GNU.sparse.size": "1" * 9}), b"x")
    ),
    "long-header": adding((named("home/user/p", pax_headers={"comment": "x" * 200_000}), b"x")),
    "deep": adding((named("home/user/" + "d/" * 80 + "x.md"), b"x")),
    "changed-bytes": changed("home/user/by-hand.md", b"The kettle is red!!\n"),
    "changed-ledger": changed("state/ledger.db", b"SQLite format 3\0" + b"x" * 4_000),
    "empty-ledger": lambda members: with_manifest(changed("state/ledger.db", b"")(members)),
    "half-a-character": lambda members: [
        *members[:-1],
        (members[-1][0], json.dumps(json.loads(members[-1][1]) | {"home": "\ud800"}).encode()),
    ],
    "lying-ledger": lambda members: with_manifest(changed("state/ledger.db", b"x" * 9_000)(members)),
    "other-key": lambda members: with_manifest(changed("state/audit.key", b"k" * 32)(members)),
    "no-ledger": lambda members: with_manifest(
        [each for each in members if each[0].name != "state/ledger.db"]
    ),
    "one-less": lambda members: [each for each in members if each[0].name != "home/user/by-hand.md"],
    "no-manifest": lambda members: members[:-1],
    "behind": lambda members: [*members, (named("home/user/evil.md"), b"x")],
    "no-json": changed(backing.MANIFEST, b"[" * 100_000),
    "list": changed(backing.MANIFEST, b"[]"),
    "files-none": changed(backing.MANIFEST, json.dumps({"format": backing.FORMAT, "files": 7}).encode()),
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
    before, told = photograph(tmp_path / "elsewhere", tmp_path / "home").keys(), {}
    for name, change in HOSTILE.items():
        remade(tmp_path / "a", tmp_path / "b", change)
        error = other.document("restore", tmp_path / "b", code=1)["error"]
        assert photograph(tmp_path / "elsewhere", tmp_path / "home").keys() == before, name
        told[name] = error["code"], error["message"].endswith("nothing was restored")
    assert told == dict.fromkeys(HOSTILE, ("config_invalid", True))
    honest = remade(tmp_path / "a", tmp_path / "b", adding((named("home/user/more.md"), b"More.\n")))
    assert other.document("restore", honest)["files"] > 0, "they are refused for what they do"


def test_restore_rejects_truncated_backup(home, other, tmp_path):
    home("backup", tmp_path / "a")
    whole = (tmp_path / "a").read_bytes()
    for size in (0, 1, 511, 512, 513, len(whole) // 2, len(whole) - 11_000):
        put(tmp_path, "b", whole[:size])
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
        time.sleep(max(0, 0.05 * (number + 1) - (time.monotonic() - began)))  # Twenty in a second.
"""


@pytest.mark.slow
def test_backup_during_writes_contains_acknowledged_commits(home, other, tmp_path):
    env = os.environ | {"MUNIMENT_HOME": str(home.path)}
    text = (Path(muniment.__file__).with_name("policies") / "strict.toml").read_text()
    text = text.replace('name = "strict"', 'name = "none"').replace('require = "partial"', 'require = "none"')
    command = [sys.executable, "-c", WRITER, str(home.work), str(put(tmp_path, "none.toml", text))]
    writer = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    try:
        lines = [writer.stdout.readline() for _ in range(40)]
        moment = time.time_ns()
        made = home.document("backup", tmp_path / "a")
        later = [writer.stdout.readline() for _ in range(5)]
    finally:
        writer.send_signal(signal.SIGKILL)
        lines += writer.communicate()[0].splitlines()
    acknowledged = {line.split()[1] for line in [*lines, *later] if line and int(line.split()[0]) < moment}
    assert len(acknowledged) >= 40
    other("restore", tmp_path / "a")
    assert other.document("audit", "verify")["whole"]
    assert other.document("index", "verify")["correct"]
    paths = {each["path"] for each in other.document("ls")["entries"]}
    assert acknowledged <= paths
    assert made["notes"] == []
    committed = {each["path"] for each in other.document("history")["steps"]}
    assert committed == paths - {"user/by-hand.md"}, "no file without its commit, no commit without its file"


def test_backup_prints_head_of_its_own_ledger(home, other, tmp_path, monkeypatch):
    """Though somebody else's task is put on record while it is made."""
    finish = backing._Archive.finish

    def later(*arguments):
        home("remember", "The user whistles")
        return finish(*arguments)

    monkeypatch.setattr(backing._Archive, "finish", later)
    made = home.document("backup", tmp_path / "a")
    assert other.document("restore", tmp_path / "a")["head"] == made["head"]


def test_backup_target_needs_no_write_ahead_log(home, tmp_path, monkeypatch):
    """As to a share: beside the target nothing is asked of SQLite that such a file system refuses."""
    asked, connect = [], sqlite3.connect

    def noting(path, *arguments, **more):
        connection = connect(path, *arguments, **more)
        if str(tmp_path / "share") in str(path):
            connection.set_trace_callback(asked.append)
        return connection

    (tmp_path / "share").mkdir()
    monkeypatch.setattr(sqlite3, "connect", noting)
    home("backup", tmp_path / "share" / "a")
    assert asked
    assert [each for each in asked if "wal" in each.lower()] == []


def test_backup_and_restore_name_leftovers_of_killed_runs(home, other, tmp_path):
    left = [tmp_path / ".a[1]**.bak.0badcafe.unfinished", other.path.parent / ".other.0badcafe.restoring"]
    for each in left:
        each.mkdir(parents=True)
    made = home.document("backup", tmp_path / "a[1]**.bak")
    restored = other.document("restore", tmp_path / "a[1]**.bak")
    assert [len(each["notes"]) for each in (made, restored)] == [1, 1]
    assert str(left[0]) in made["notes"][0]
    assert str(left[1]) in restored["notes"][0]
    assert all(each.exists() for each in left)


def test_cancelled_restore_leaves_nothing(home, other, tmp_path, monkeypatch):
    home("backup", tmp_path / "a")
    put_down = backing._put

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGINT)
        return put_down(*arguments)

    monkeypatch.setattr(backing, "_put", interrupted)
    assert other.document("restore", tmp_path / "a", code=130)["error"]["code"] == "cancelled"
    assert list(other.path.parent.iterdir()) == []


def test_interrupted_backup_leaves_no_file(home, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backing._Archive, "finish", full)
    told = home.document("backup", tmp_path / "a", code=1)["error"]
    assert "No space left on device" in told["message"]
    monkeypatch.setattr(backing._Archive, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    home("backup", tmp_path / "a", code=130)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "mem0.json", "work"]
    assert (
        Home(tmp_path, "none").document("backup", tmp_path / "a", code=1)["error"]["code"] == "config_invalid"
    )
