"""The output that lists facts: on terminals of several widths, and in a pipe."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from kit.cli.screen import count_cells
from kit.memories import write_file
from muniment.kernel.names import MAX_FILE_BYTES

WIDTHS = (40, 80, 120)
SGR = re.compile(r"\x1b\[[0-9;]*m")
AGE = re.compile(r"(  +(just now|\d+ min ago)\b.*|  +[a-z0-9]{5})$")
"""The columns after the text; a narrow terminal has only the handle."""

TITLES = {
    "long": "x" * 150,
    "path": "https://example.org/" + "a/b" * 60,
    "chinese": "我们每周四把新版本部署到生产环境并且在部署之前运行所有的测试和检查" * 2,
    "mixed": "Deploy 部署 in 东京 and ソウル at 10 " * 4 + "end",
    "hebrew": "אנחנו פורסים בימי חמישי בשעה עשר " * 4 + "סוף",
    "combining": "cafe\u0301 re\u0301sume\u0301 " * 12 + "end",
    "marks": "word \u0301 " * 30 + "end",
    "emoji": "🚀 deploy 🎉 party 🇩🇪 " * 6 + "end",
    "words": "We deploy the release on Thursdays at ten, after all tests have passed " * 3 + "end",
    "code": "Run `make  test`, then <b>bold</b> [red]markup[/red] :rocket: %s {0}",
}
"""Titles that are difficult to wrap."""


@pytest.fixture
def titles(roots):
    """Write an entry for each title, and return the titles."""
    for name, title in TITLES.items():
        write_file(roots["user"], f"topic/{name}.md", f"---\nname: {title!r}\n---\n{title}\n")
    return TITLES


def remove_colors(text):
    plain = SGR.sub("", text)
    assert "\x1b" not in plain
    return plain


def join_column(lines):
    """Return the text of the first column without spaces."""
    return "".join("".join(AGE.sub("", line).split()) for line in lines)


# -- terminals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", WIDTHS)
def test_lists_on_terminal_fit_its_width_and_lose_nothing(cli, titles, columns):
    for arguments in (["ls"], ["ls", "--long"], ["recall", "deploy", "release", "Thursdays"]):
        screen = cli.show(*arguments, columns=columns)
        assert screen.code == 0, screen.text
        lines = remove_colors(screen.text).splitlines()
        assert [line for line in lines if count_cells(line) > columns] == [], arguments
        assert [line for line in lines if line != line.rstrip()] == []
        if arguments[0] == "ls":
            column = join_column(lines)
            assert [name for name, each in titles.items() if "".join(each.split()) not in column] == []


@pytest.mark.usefixtures("titles")
def test_ls_on_terminal_wraps_at_words_and_aligns_columns(cli):
    lines = remove_colors(cli.show("ls", columns=80).text).splitlines()
    assert lines[0] == f"user/topic ({len(TITLES)})"
    handles = {each["handle"] for each in cli.run_for_document("ls")["entries"]}
    ends = [line.rsplit("  ", 1) for line in lines if line.rsplit(" ", 1)[-1] in handles]
    assert {handle for _, handle in ends} == handles
    assert {count_cells(begin) for begin, _ in ends} == {80 - 7}
    for line in lines:
        words = AGE.sub("", line).split()
        assert not set(words) & {"relea", "Thursda", "Thursday", "depl", "test"}


@pytest.mark.parametrize("columns", [1, 5, 10, 20, 1000])
def test_ls_works_on_very_narrow_and_wide_terminals(cli, titles, columns):
    screen = cli.show("ls", columns=columns)
    assert screen.code == 0, screen.text
    column = "".join(remove_colors(screen.text).split())
    assert all("".join(titles[name].split())[:8] in column for name in ("words", "hebrew"))


def test_terminal_without_a_size_has_80_columns(cli, titles):
    assert cli.show("ls", columns=0).text == cli.show("ls", columns=80).text
    assert cli.show("ls", columns=40).text == cli.show("ls", columns=80, COLUMNS="40").text
    assert len(titles) == len(TITLES)


def test_text_on_terminal_cannot_imitate_another_entry(cli, roots):
    forged = "Forged   2 h ago  user/topic  k3f9q"
    filled = "Real " + "word " * 8 + "Forged by wrapping"
    for name, body in (("lines", f"Real zebra\n{forged}"), ("wrap", f"{filled} zebra"), ("one", "A zebra")):
        write_file(roots["project"], f"{name}.md", f"---\nname: |\n  {body!r}\n---\n{body}\n")
    write_file(roots["project"], "title.md", f'---\nname: "Real\\n{forged}\\r{forged}"\n---\nzebra\n')
    handles = {each["handle"] for each in cli.run_for_document("ls")["entries"]}
    for indent, command in (("  ", ["ls"]), ("", ["recall", "zebra"]), ("", ["why", "project/title.md"])):
        for columns in WIDTHS:
            lines = remove_colors(cli.show(*command, columns=columns).text).splitlines()
            entries = [line for line in lines if re.match(rf"{indent}\S", line) and "project (" not in line]
            assert [line for line in entries if line.rpartition(" ")[2] not in handles] == [], columns
            assert "Forged" in " ".join(lines)
            assert len({line.rpartition(" ")[2] for line in entries}) == len(entries)


CONTROLS = frozenset(map(chr, (*range(10), *range(11, 32), *range(127, 160)))) | set(
    "\u202e\u2066\ue000\u200b"
)
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u2066\ue000\x00\x08\x7f\u200b"
ALLOWED = re.compile(r"\x1b\[(0|1|2|31;1|32|33|36)m")


def test_terminal_receives_no_control_characters_of_files(cli, roots):
    for number, char in enumerate(sorted(CONTROLS)):
        if char != "\x00":
            title = "".join(f"\\U{ord(each):08x}" for each in f"a{char}b\tc\nd")
            write_file(roots["user"], f"{number}.md", f'---\nname: "{title}"\n---\nzebra{char}tail\n')
    write_file(
        roots["user"], "raw.md", f"---\nname: x\n---\nzebra {HOSTILE}\nsecond line\n".replace("\0", "")
    )
    write_file(roots["user"], f"{HOSTILE[:5]}.md", "zebra\n")
    write_file(roots["user"], "no-text.md", b"zebra \xff\xfe\n")
    commands = [["ls"], ["ls", "--long"], ["recall", "zebra"], ["show", "user/raw.md"]]
    commands += [["show", "user/raw.md", "--verbose"], ["why", "user/raw.md"], ["history", "user/raw.md"]]
    commands += [["show", f"user/{number}.md"] for number in range(1, len(CONTROLS), 5)]
    for arguments in commands:
        for columns in (40, 120):
            screen = cli.show(*arguments, columns=columns)
            assert screen.code == 0, screen.text
            plain = ALLOWED.sub("", screen.text)
            assert not CONTROLS & set(plain), (arguments, plain)
        text = cli(*arguments).output if arguments[0] != "show" else ""
        assert not (CONTROLS - {"\t"}) & set(text), arguments
    text = remove_colors(cli.show("ls").text)
    assert text.count("withheld (") >= 4
    assert "not UTF-8 text" in " ".join(text.split())
    assert "skipped: user/" in text


def test_unusual_entries_are_labelled(cli, roots):
    write_file(roots["user"], "over.md", "---\nends: 2020-02-29\n---\nThe gym is closed\n")
    write_file(roots["user"], "gone.md", "---\nexpires: 2020-02-29\n---\nThe bar is closed\n")
    write_file(roots["project"], "bad.md", "x" * (MAX_FILE_BYTES + 1))
    lines = remove_colors(cli.show("ls", columns=100).text).splitlines()
    assert len([line for line in lines if re.match(r"  over \(ended on 2020-02-29\) ", line)]) == 1
    assert "user: 1 expired, not listed; to list them: muniment ls --all" in lines
    assert "gone" not in " ".join(lines)
    assert [line for line in remove_colors(cli.show("ls", "--all").text).splitlines() if "  gone" in line]
    assert cli.run_for_records("ls", "--all", "user")[0].place == "user"
    unreadable = next(line for line in lines if "cannot be read" in line)
    assert "external" in unreadable  # The trust of an unknown text.
    assert "  project/bad.md" in lines


def test_empty_memory_says_what_to_do(cli):
    for arguments, text in (
        (["ls"], 'nothing is saved here yet; to save a fact: muniment remember "We deploy on Thursdays"'),
        (["history"], "no changes were committed yet"),
        (["recall", "x"], "no entry matches; to list all entries: muniment ls"),
        (["review", "list"], "nothing waits for you"),
        (["undo", "--list"], "no change is left to undo"),
    ):
        assert cli.show(*arguments, columns=120) == (0, f"{text}\n")
        piped = cli(*arguments)
        assert (piped.stdout, piped.stderr) == ("", f"note: {text}\n"), arguments


def test_ls_of_many_entries_shows_the_newest_of_each_topic(cli, roots):
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(130):
        write_file(
            roots["user"],
            f"a b/{number}.md",
            f"---\nname: A {number}\n"
            f'muniment: {{"updated": "{start + timedelta(hours=number):%FT%TZ}"}}\n---\n',
        )
    for number in range(80):
        write_file(roots["user"], f"c/{number}.md", f"---\nname: C {number}\n---\nx\n")
    lines = remove_colors(cli.show("ls").text).splitlines()
    assert lines[0] == "user/a b (130)"
    assert [line.split()[1] for line in lines[1:6]] == ["129", "128", "127", "126", "125"]
    assert lines[6] == "  and 125 more: muniment ls 'user/a b'"
    assert lines[8] == "user/c (80)"
    assert len(lines) == 8 + 7
    assert len(cli.show("ls", "user/a b").lines) == 1 + 130
    assert len(cli.run_for_records("ls")) == 210
    write_file(roots["user"], "c/80.md", "---\nname: C\n---\nx\n")
    assert len(cli.run_for_document("ls")["entries"]) == 211


# -- pipes ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("titles")
def test_pipe_has_one_record_of_five_fields_for_each_entry(cli, roots):
    write_file(roots["project"], "tab.md", '---\nname: "a\\tb\\nc"\n---\nzebra\n')
    output = cli("ls").stdout
    assert output == cli("ls").stdout
    fields = [tuple(line.split("\t")) for line in output.splitlines()]
    entries = cli.run_for_document("ls")["entries"]
    assert sorted(fields) == sorted(
        (
            " ".join(each["name"].split()),
            each["at"],
            each["path"].rpartition("/")[0],
            each["trust"],
            each["handle"],
        )
        for each in entries
    )
    long = cli.run_for_records("ls", "--long")
    assert {each.path for each in long} == {each["path"] for each in entries}
    assert [tuple(each[:5]) for each in long] == fields
    for command in (["recall", "deploy"], ["ls", "project"]):
        assert {line.count("\t") for line in cli(*command).stdout.splitlines()} == {4}


# -- colours -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("titles")
def test_colors_depend_on_terminal_option_and_environment(cli):
    def has_colors(*arguments, **environment):
        return "\x1b" in cli.show("ls", *arguments, **environment).text

    assert has_colors()
    assert not has_colors(NO_COLOR="1")
    assert has_colors(NO_COLOR="")
    assert not has_colors(TERM="dumb")
    assert not has_colors("--color=never")
    assert has_colors("--color=always", NO_COLOR="1", TERM="dumb")
    assert has_colors("--color", "auto")
    plain, colored = (cli.show("ls", f"--color={each}").text for each in ("never", "always"))
    assert remove_colors(colored) == plain
    for color in ("auto", "always", "never"):
        assert "\x1b" not in cli("ls", f"--color={color}").output
    done = cli("ls", "--color=purple")
    assert (done.exit_code, "use one of auto, always, never" in " ".join(done.stderr.split())) == (2, True)


@pytest.mark.usefixtures("titles")
def test_json_is_the_same_on_a_terminal(cli):
    assert cli.show("ls", "--json", "--color=always").text == cli("ls", "--json").stdout


@pytest.mark.parametrize("columns", [20, 30, 45, 80])
def test_trust_of_others_is_shown_at_every_width(cli, memory, columns):
    memory.remember("The mill of the village is closed on Sundays", scope="user", trust="agent")
    memory.remember("The gate is blue", scope="user")
    for command in (["ls"], ["history"]):
        text = remove_colors(cli.show(*command, columns=columns).text)
        assert text.count("agent") == 1, text
        assert "owner" not in text
