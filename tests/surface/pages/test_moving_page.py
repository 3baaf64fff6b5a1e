"""Every command of the page about moving a memory works, in the order of the page."""

import pytest

from kit import sources
from kit.shell import blocks_of, printed, text_of
from muniment.transfer.formats import FORMATS

TEXT = text_of("docs/moving.md")


def test_page_lists_every_format_and_command():
    for name in FORMATS:
        assert f"| `{name}` |" in TEXT
    for command in ("import PATH", "export --to FILE.tar", "backup FILE", "restore FILE"):
        assert f"`muniment {command}`" in TEXT


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_command_of_the_page_works(tmp_path):
    tmp_path.chmod(0o700)
    sources.claude_code(tmp_path)
    for line in "".join(blocks_of(TEXT)).splitlines():
        assert line.startswith("$ "), line
        printed("/bin/sh", "-c", line[2:], home=tmp_path)
    assert (tmp_path / ".muniment-before" / "user").is_dir()
    assert sorted(path.name for path in tmp_path.glob("*/user/who.md"))
    assert (tmp_path / "other" / "user" / "who.md").read_bytes() == (
        tmp_path / ".muniment" / "user" / "who.md"
    ).read_bytes()
