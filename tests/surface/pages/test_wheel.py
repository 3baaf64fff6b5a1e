"""The wheel, built here, contains the package and its policies, and nothing else."""

import ast
import hashlib
import json
import sys
import zipfile
from pathlib import Path

import pytest

import muniment
from kit.shell import printed, run
from kit.where import REPOSITORY

SOURCES = REPOSITORY / "src"
CORPUS = "muniment/testing/corpus"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build without network: the build backend is a dev dependency. Do not skip, because that would hide an
    error.
    """
    out = tmp_path_factory.mktemp("dist")
    build = ("-m", "build", "--wheel", "--no-isolation", "--outdir", out, REPOSITORY)
    printed(sys.executable, *build, home=out)
    (path,) = out.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_wheel_contains_all_modules_and_data_and_nothing_else(wheel):
    def list_files(folder, pattern):
        return {str(path.relative_to(SOURCES)) for path in (SOURCES / "muniment" / folder).glob(pattern)}

    names = {info.filename for info in wheel.infolist() if not info.is_dir()}
    expected = list_files("", "**/*.py") | {"muniment/py.typed"}
    expected |= list_files("", "**/*.sql") | list_files("content", "*.txt")
    expected |= {
        each for folder in ("agent", "content", "policy", "recall") for each in list_files(folder, "*.toml")
    }
    expected |= list_files("server/page", "templates/*.html") | list_files("server/page", "static/*.*")
    expected |= {f"{CORPUS}/{name}" for name in ("escapes.json", "own.json", "README.md")}
    policies = {f"muniment/policies/{path.name}": path for path in (REPOSITORY / "policies").iterdir()}
    metadata = {name for name in names if ".dist-info/" in name}
    assert names - metadata == expected | policies.keys()
    metadata_names = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "LICENSE"}
    assert {name.rpartition("/")[2] for name in metadata} == metadata_names
    assert all(wheel.read(name) == path.read_bytes() for name, path in policies.items())
    assert all(info.external_attr >> 28 != 0o12 for info in wheel.infolist()), "a link"


def test_wheel_metadata_has_version_urls_and_requirements(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    lines = wheel.read(name).decode().splitlines()
    assert {f"Version: {muniment.__version__}", "Requires-Python: >=3.11"} <= set(lines)
    urls = [line.split()[1] for line in lines if line.startswith("Project-URL: ")]
    assert urls == ["Homepage,", "Documentation,", "Changelog,", "Issues,", "Security,"]
    wanted = [line.split()[1] for line in lines if line.startswith("Requires-Dist: ") and "extra" not in line]
    assert " ".join(sorted(each.split(">")[0].split("<")[0] for each in wanted)) == (
        "google-re2 httpcore2 httpx2 openai pathspec prometheus-client pydantic rich starlette structlog "
        "tomlkit typer uvicorn"
    )


PUBLISHED_SHA256 = "f374dbf8a75f9bcefc7a8e024df6d595b8e00b169f6ac9d03547fb43351c698e"


def test_wheel_contains_published_and_own_corpus(wheel):
    published = wheel.read(f"{CORPUS}/escapes.json")
    assert hashlib.sha256(published).hexdigest() == PUBLISHED_SHA256
    assert len(json.loads(published)["cases"]) == 265
    own_cases = json.loads(wheel.read(f"{CORPUS}/own.json"))["cases"]
    assert {case["source"] for case in own_cases} == {"own"}


FROM_THE_ARCHIVE = """
import sys
sys.path[:0] = [{site!r}, {pytest!r}]
sys.modules |= dict.fromkeys(("hypothesis", "markdown_it"))  # Importing them fails.
from pathlib import Path
from muniment.policy.load import load_policy
from muniment.testing.corpus import load_corpus, run_case
from muniment.testing.corpus.subjects import SandboxSubject
corpus = load_corpus()
case, stage = corpus.cases["sym-write-file"], Path({stage!r})
failures = run_case(case, stage, corpus.canary, lambda *given: SandboxSubject(*given, in_process=True))
print(load_policy("clean").label, len(corpus.cases), failures, sys.modules["muniment"].__file__)
"""


def test_wheel_works_from_archive_without_extra(wheel, tmp_path):
    wheel.extractall(site := tmp_path / "site")
    paths = {"site": str(site), "pytest": str(Path(pytest.__file__).parents[1]), "stage": str(tmp_path / "c")}
    code = FROM_THE_ARCHIVE.format(**paths)
    label, count, failures, origin = printed(sys.executable, "-I", "-S", "-c", code, home=tmp_path).split()
    assert label.startswith("clean@")
    assert int(count) > 265
    assert failures == "[]"
    assert origin.startswith(str(site))


OLD = f"""
import sys
sys.path[:0], sys.version_info, sys.argv[0] = [{str(SOURCES)!r}], (3, 9, 18), sys.argv[1]
import muniment
"""


def test_old_python_prints_one_line_or_import_error():
    needed = "muniment needs Python 3.11 or later, and this is Python 3.9"
    for mode, first, last in (("-m", needed, needed), ("", "Traceback", f"ImportError: {needed}")):
        done = run(sys.executable, "-I", "-S", "-c", OLD, mode, home=REPOSITORY)
        lines = done.stderr.splitlines()
        assert (done.returncode, lines[0].startswith(first), lines[-1]) == (1, True, last)


def test_package_init_parses_on_old_python():
    ast.parse((SOURCES / "muniment" / "__init__.py").read_text(), feature_version=(3, 7))
