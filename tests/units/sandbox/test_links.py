"""The five tools over resolved links: claims, searches and listings use the single real name of a file."""

import pytest

from kit.memories import SCOPES, make_roots, make_strict_policy, open_roots, write_file
from kit.sandbox.benches import Bench
from muniment.kernel.names import Verb
from muniment.sandbox.tools.links import read_links
from muniment.sandbox.tools.workbench import Workbench


@pytest.fixture
def roots(tmp_path):
    roots = make_roots(tmp_path)
    write_file(roots["user"], "real.md", "alpha\n")
    write_file(roots["user"], "topic/one.md", "alpha one\n")
    write_file(roots["user"], "other/two.md", "alpha two\n")
    return roots


def make_linked_bench(roots, policy=None, *, links=(), must_read=False):
    for rel, target in dict(links).items():
        path = roots["user"] / rel
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    root_handles = open_roots(roots)
    mapped = {scope: read_links(root) for scope, root in root_handles.items()}
    return Bench(
        Workbench(policy or make_strict_policy(), SCOPES, root_handles, must_read=must_read, links=mapped),
        roots,
    )


def test_read_claims_and_unlocks_the_file_under_every_name(roots):
    bench = make_linked_bench(roots, links={"l.md": "real.md", "t": "topic"}, must_read=True)
    for path in ("user/real.md", "user/l.md"):
        assert bench("write_file", path=path, content="x\n").code == "not_read"
    for path in ("user/l.md", "user/topic/one.md"):
        bench("read_file", path=path)
    assert list(bench.list_claims()) == ["user/real.md", "user/topic/one.md"]
    for path in ("user/real.md", "user/t/one.md"):
        assert bench("write_file", path=path, content="x\n").verdict == "allow"
    assert list(bench.list_pending()) == ["user/real.md", "user/topic/one.md"]


def test_grep_follows_links_and_reports_real_names(roots):
    links = {"l.md": "real.md", "t": "topic", "topic/w.md": "../other/two.md", "here": "."}
    bench = make_linked_bench(roots, links={**links, "f.md": "real.md/"})
    one, two = "user/topic/one.md:1: alpha one", "user/other/two.md:1: alpha two"
    everything = [two, "user/real.md:1: alpha", one]
    for pattern, path, lines in (
        *(("alpha", "", everything), ("alpha", "user", everything)),
        *(
            ("alpha", "user/here", [*everything, "[user/here points to user]"]),
            ("alpha", "user/topic", [one]),
        ),
        ("alpha", "user/t/", [one, "[user/t points to user/topic]"]),
        ("two", "user/t/w.md", [two, "[user/t/w.md points to user/other/two.md]"]),
        ("nothing", "user/l.md", ["no matches", "[user/l.md points to user/real.md]"]),
    ):
        assert bench("grep", pattern=pattern, path=path).text.split("\n") == lines
    assert bench("grep", pattern="alpha", path="user/f.md").code == "not_a_file"
    assert bench("read_file", path="user/f.md").text == "user/f.md is a folder; give a file in it"


@pytest.mark.threat("T-PATH-14", control="both_names")
def test_path_denied_under_either_name_is_not_listed_or_found(roots):
    for name in ("secret", "unread"):
        write_file(roots["user"], f"topic/{name}.md", f"alpha {name}\n")
    links = {"t": "topic", "s.md": "topic/secret.md"}
    denied = [(["list"], ["/user/t/one.md", "/user/topic/secret.md"]), (["read"], ["/user/t/unread.md"])]
    bench = make_linked_bench(roots, make_strict_policy(deny=denied), links=links)
    assert (
        bench("ls", path="user/t").text == "unread.md (13 bytes)\n[1 in all]\n[user/t points to user/topic]"
    )
    assert bench("grep", pattern="alpha", path="user/t").text == "no matches\n[user/t points to user/topic]"
    assert "s.md" not in bench("ls", path="user").text
    assert bench("grep", pattern="alpha", path="user/s.md").code == "refused"
    assert bench("ls", path="user/topic").text == "one.md (10 bytes)\nunread.md (13 bytes)\n[2 in all]"
    for folder in ("/user/t/", "/user/topic/"):
        bench = make_linked_bench(roots, make_strict_policy(deny=[(["list"], [folder])]))
        assert "t/" not in bench("ls", path="user").text.split("\n")
        for tool, arguments in (("ls", {}), ("grep", {"pattern": "alpha"})):
            outcome = bench(tool, path="user/t", **arguments)
            assert (outcome.code, outcome.rule) == ("refused", "test-deny-0")


def test_grep_of_one_file_needs_list_and_read_under_both_names(roots):
    write_file(roots["user"], "unlisted.txt", "alpha\n")
    allow = [(["read"], ["/user/*.txt"]), (["list", "read"], ["/user/*.link"])]
    policy = make_strict_policy(deny=[(["read"], ["/user/unread.md"])], allow=allow)
    bench = make_linked_bench(
        roots, policy, links={"unread.md": "real.md", "to.link": "unlisted.txt", "l.md": "real.md"}
    )
    assert bench("read_file", path="user/to.link").verdict == "allow"
    for path in ("user/unread.md", "user/to.link", "user/unlisted.txt"):
        assert bench("grep", pattern="alpha", path=path).code == "refused"
    assert bench("grep", pattern="alpha", path="user/l.md").verdict == "allow"
    outcome = bench("edit", path="user/unread.md", old_string="alpha", new_string="beta")
    assert outcome.text == "changed user/real.md; user/unread.md points there", "no line of it is returned"


def test_denial_of_a_link_target_names_the_rule_only(roots):
    write_file(roots["user"], "private/hidden-name.md", "alpha\n")
    policy = make_strict_policy(deny=[(list(Verb), ["/user/private/"])])
    bench = make_linked_bench(roots, policy, links={"l.md": "private/hidden-name.md", "p": "private"})
    text = "user/l.md has a link, and the rule 'test-deny-0' denies this for its target; use another name"
    for tool, arguments in (
        *(("read_file", {}), ("ls", {}), ("grep", {"pattern": "alpha"}), ("write_file", {"content": "x\n"})),
        ("edit", {"old_string": "alpha", "new_string": "x"}),
    ):
        outcome = bench(tool, path="user/l.md", **arguments)
        assert (outcome.rule, outcome.text) == ("test-deny-0", text)


@pytest.mark.threat("T-PATH-14", control="both_names")
def test_create_and_modify_are_judged_under_both_names(roots):
    deny = [(["create"], ["/user/no-new*"]), (["modify"], ["/user/fixed*"])]
    write_file(roots["user"], "fixed.md", "alpha\n")
    links = {"no-new-l.md": "born.md", "l.md": "no-new.md", "fixed-l.md": "real.md", "m.md": "fixed.md"}
    links |= {"plain": "born.md", "s.md": "born.sh"}
    bench = make_linked_bench(
        roots, make_strict_policy(deny=deny, allow=[(["create"], ["/user/*"])]), links=links
    )
    for name in ("no-new-l.md", "l.md", "fixed-l.md", "m.md"):
        assert bench("write_file", path=f"user/{name}", content="x\n").code == "refused"
    assert bench("edit", path="user/fixed-l.md", old_string="alpha", new_string="x").code == "refused"
    assert bench.list_pending() == {}
    # The name of a created file ends in .md, for any name of the link.
    assert bench("write_file", path="user/plain", content="x\n").verdict == "allow"
    assert bench("write_file", path="user/s.md", content="x\n").code == "bad_name"
