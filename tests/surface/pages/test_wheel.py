"""The wheel, built here: what people install is the package, its policies, and nothing else."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import muniment
from kit.where import REPOSITORY


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Without a network: the build backend is a dev dependency. No skip: that would hide a fault."""
    out = tmp_path_factory.mktemp("dist")
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, REPOSITORY],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def members(wheel):
    return {info.filename for info in wheel.infolist() if not info.is_dir()}


def test_it_holds_every_module_and_nothing_that_is_none(wheel):
    sources = REPOSITORY / "src"
    package = sources / "muniment"
    modules = {str(path.relative_to(sources)) for path in package.rglob("*.py")}
    data = {
        f"muniment/{folder}/{path.name}"
        for folder in ("agent", "content", "policy")
        for path in (package / folder).glob("*.toml")
    }
    data |= {f"muniment/testing/corpus/{name}" for name in ("escapes.json", "own.json", "README.md")}
    policies = {f"muniment/policies/{path.name}" for path in (REPOSITORY / "policies").iterdir()}
    metadata = {name for name in members(wheel) if ".dist-info/" in name}
    assert members(wheel) - metadata == modules | data | policies | {"muniment/py.typed"}
    assert {name.rpartition("/")[2] for name in metadata} == {
        "METADATA",
        "WHEEL",
        "RECORD",
        "entry_points.txt",
        "LICENSE",
    }


def test_its_policies_are_files_with_the_bytes_of_the_checkout(wheel):
    for name in ("strict.toml", "clean.toml"):
        assert wheel.read(f"muniment/policies/{name}") == (REPOSITORY / "policies" / name).read_bytes()
    assert all(info.external_attr >> 28 != 0o12 for info in wheel.infolist()), "a link"


def test_its_metadata_say_what_it_is_and_needs(wheel):
    (name,) = (name for name in members(wheel) if name.endswith("/METADATA"))
    text = wheel.read(name).decode()
    assert f"Version: {muniment.__version__}\n" in text
    assert "Requires-Python: >=3.11\n" in text
    needs = {
        line.removeprefix("Requires-Dist: ").split(";")[0]
        for line in text.splitlines()
        if line.startswith("Requires-Dist: ") and "extra ==" not in line
    }
    assert {need.split(">")[0].split("<")[0] for need in needs} == {
        "google-re2",
        "httpcore2",
        "httpx2",
        "openai",
        "pathspec",
        "prometheus-client",
        "pydantic",
        "rich",
        "starlette",
        "structlog",
        "typer",
        "uvicorn",
    }


def run_from(directory, code):
    """What `code` prints, with Muniment from `directory` and everything else from where pytest is."""
    site = Path(pytest.__file__).parent.parent
    paths = f"import sys; sys.path[:0] = [{str(directory)!r}, {str(site)!r}]"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"{paths}\n{code}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=directory,
        timeout=30,
    )
    return done.stdout.split()


def test_it_works_from_the_archive_alone(wheel, tmp_path):
    wheel.extractall(tmp_path)
    label, where = run_from(
        tmp_path,
        "import muniment; from muniment.policy.load import load_policy\n"
        "print(load_policy('clean').label, muniment.__file__)",
    )
    assert label.startswith("clean@")
    assert where.startswith(str(tmp_path))


PUBLISHED_SHA256 = "f374dbf8a75f9bcefc7a8e024df6d595b8e00b169f6ac9d03547fb43351c698e"


def test_its_corpus_is_the_published_one_and_ours(wheel):
    published = wheel.read("muniment/testing/corpus/escapes.json")
    assert hashlib.sha256(published).hexdigest() == PUBLISHED_SHA256
    assert len(json.loads(published)["cases"]) == 265
    assert {
        case["source"] for case in json.loads(wheel.read("muniment/testing/corpus/own.json"))["cases"]
    } == {"own"}


def test_its_corpus_runs_from_the_archive_alone_and_without_the_extra(wheel, tmp_path):
    site, stage = tmp_path / "site", tmp_path / "case"
    wheel.extractall(site)
    printed = run_from(
        site,
        f"""
sys.modules |= dict.fromkeys(("hypothesis", "markdown_it"))  # Importing them fails.
from pathlib import Path
from muniment.testing.corpus import load_corpus, run_case
from muniment.testing.corpus.subjects import open_subject
corpus = load_corpus()
failures = run_case(
    corpus.cases["sym-write-file"],
    Path({str(stage)!r}),
    corpus.canary,
    lambda stage, case: open_subject("in-process", stage, case),
)
print(len(corpus.cases), failures, sys.modules["muniment"].__file__)
""",
    )
    assert int(printed[0]) > 265
    assert printed[1] == "[]"
    assert printed[2].startswith(str(site))


@pytest.mark.slow
def test_the_attack_kit_runs_from_the_archive_alone(wheel, tmp_path):
    site = tmp_path / "site"
    wheel.extractall(site)
    cases = [f"--case={name}" for name in ("ok-edit", "ok-index-nested", "sym-write-file")]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "muniment", "conformance", *cases],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(site), "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    assert done.stdout.splitlines()[-1] == "muniment: passed: 3 held"
