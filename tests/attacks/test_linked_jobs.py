"""Remember where links are resolved: what is saved, known and told goes by the one name of a file."""

from __future__ import annotations

import pytest

import muniment
from kit.jobs.places import any_words
from kit.memories import CANARY, descriptors, make_roots, photograph, put, strict
from muniment.agent.filing import RuleWriter
from muniment.confine import root as reading
from muniment.confine.binding import bind_all
from muniment.errors import ConfigInvalid
from muniment.jobs.place import Place
from muniment.jobs.remember import remember
from muniment.jobs.request import RememberRequest
from muniment.names import Symlinks
from muniment.store.state import State
from muniment.testing.minds import ScriptedModel, call, calls, say

__all__ = ["any_words"]
# What a model may commit is narrowed before this (T-RUN-14); here it writes what it likes.
pytestmark = pytest.mark.usefixtures("any_words")

FACT = "The user prefers dark mode"


@pytest.fixture
def roots(tmp_path):
    roots = make_roots(tmp_path)
    user = roots["user"]
    put(user, "real.md", f"{FACT}\n")
    put(user, "topic/one.md", "one\n")
    for rel, target in {
        "l.md": "real.md",
        "t": "topic",
        "index.md": "MEMORY.md",
        "out.md": "../outside/secret.md",
    }.items():
        (user / rel).symlink_to(target)
    return roots


@pytest.fixture(params=["worker", "in process"])
def ask(request, roots):
    """Remembers the fact with a model in a place whose links are resolved."""
    in_process = request.param == "in process"
    bound, state = bind_all(roots), State(None)

    def run(*steps, model=None, policy=None, symlinks=Symlinks.BENEATH, **terms):
        policy = policy or strict(require="none" if in_process else "partial")
        place = Place(policy, bound, state, symlinks=symlinks, in_process=in_process, on_model_failure="fail")
        return remember(RememberRequest(FACT, **terms), place, model or ScriptedModel([*steps]))

    yield run
    state.close()
    for root in bound.values():
        root.close()


def test_a_file_is_saved_and_told_under_its_one_name(ask, roots):
    done = ask(
        calls(call("read_file", path="user/l.md"), call("read_file", path="user/t/one.md")),
        calls(
            call("edit", path="user/l.md", old_string="The user", new_string="- The user"),
            call("write_file", path="user/t/new.md", content="new\n"),
        ),
        say("Saved in user/l.md."),
    )
    assert done.error is None
    assert done.files_touched == ("user/real.md", "user/topic/prefers-dark-mode.md")
    assert done.touched_scopes == ("user",)
    assert f"- {FACT}" in (roots["user"] / "real.md").read_text()
    assert (roots["user"] / "l.md").is_symlink()
    assert (roots["user"] / "topic" / "prefers-dark-mode.md").is_file()


@pytest.mark.parametrize("words", ["It stands in user/l.md.", "It stands in user/real.md."])
def test_a_fact_that_is_known_through_a_link_is_told_under_its_one_name(ask, roots, words):
    before = photograph(roots["user"])
    done = ask(calls(call("read_file", path="user/l.md")), say(words))
    assert (done.status, done.unchanged) == ("completed", True)
    assert done.summary == "already known: user/real.md"
    assert photograph(roots["user"]) == before


@pytest.mark.parametrize("path", ["user/index.md", "user/absent.md"])
def test_an_index_behind_a_link_makes_no_fact_known(ask, roots, path):
    put(roots["user"], "MEMORY.md", "an index\n")
    done = ask(calls(call("read_file", path=path)), say(f"It stands in {path}."))
    assert done.error is not None
    assert done.error.code == "remember_no_update"


def test_what_was_read_through_a_link_that_went_is_not_known(ask, roots):
    class Meddling(ScriptedModel):
        def respond(self, request):
            if len(request.messages) > 2:
                (roots["user"] / "real.md").unlink(missing_ok=True)
            return super().respond(request)

    done = ask(model=Meddling([calls(call("read_file", path="user/l.md")), say("In user/l.md.")]))
    assert done.error is not None
    assert done.error.code == "remember_no_update"


def test_a_link_that_leads_outside_ends_a_writing_run(ask, tmp_path):
    before = photograph(tmp_path)
    done = ask(
        calls(call("write_file", path="user/t/fine.md", content="fine\n")),
        calls(call("write_file", path="user/out.md", content=CANARY)),
        say("Saved."),
    )
    assert done.error is not None
    assert (done.error.code, done.error.via) == ("remember_path_escape", "symlink")
    assert photograph(tmp_path) == before


def test_where_links_are_refused_the_same_run_ends_as_an_escape(ask, tmp_path):
    before = photograph(tmp_path)
    writing = calls(call("write_file", path="user/t/new.md", content="new\n"))
    done = ask(writing, say("Saved."), symlinks=Symlinks.REFUSE)
    assert done.error is not None
    assert done.error.code == "remember_path_escape"
    assert photograph(tmp_path) == before


def test_the_embedded_writer_files_a_fact_beside_links(ask, roots):
    (roots["user"] / "real.md").unlink()
    done = ask(model=RuleWriter())
    assert done.status == "completed"
    assert len(done.files_touched) == 1
    again = ask(model=RuleWriter())
    assert again.unchanged


@pytest.mark.parametrize("ask", ["worker"], indirect=True)
def test_a_clean_run_takes_no_name_of_a_link(ask, roots):
    done = ask(calls(call("write_file", path="user/l.md", content="mine\n")), say("Saved."), context="clean")
    assert done.files_touched == ("user/l-2.md",)
    assert (roots["user"] / "l.md").is_symlink()


def test_more_links_than_are_resolved_end_the_run_with_what_to_do(ask, monkeypatch):
    monkeypatch.setattr(reading, "MAX_LINKS", 1)
    before = descriptors()
    done = ask(calls(call("ls", path="user")), say("Saved."))
    assert done.error is not None
    assert done.error.code == "managed_memory_unavailable"
    assert "bind a smaller directory, or refuse links" in str(done.error)
    assert descriptors() == before


# -- how the binding is chosen -----------------------------------------------------------------------


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return home


def resolved_by(home, roots, **terms):
    with muniment.open(home.parent, home=home, roots=roots, **terms) as memory:
        return memory.place.symlinks


def test_flag_and_configuration_say_what_becomes_of_links(home, roots):
    assert resolved_by(home, roots) is Symlinks.REFUSE
    assert resolved_by(home, roots, symlinks="beneath") is Symlinks.BENEATH
    (home / "config.toml").write_text('symlinks = "beneath"\n')
    assert resolved_by(home, roots) is Symlinks.BENEATH
    assert resolved_by(home, roots, symlinks="refuse") is Symlinks.REFUSE


@pytest.mark.parametrize("unknown", ["follow", "Beneath", "beneath ", "none"])
def test_any_other_word_is_no_setting(home, roots, unknown):
    with pytest.raises(ConfigInvalid, match="say 'refuse' or 'beneath'"):
        muniment.open(home.parent, home=home, roots=roots, symlinks=unknown)
    (home / "config.toml").write_text(f'symlinks = "{unknown}"\n')
    with pytest.raises(ConfigInvalid, match="say 'refuse' or 'beneath'"):
        muniment.open(home.parent, home=home, roots=roots)
    with pytest.raises(ConfigInvalid, match="say 'refuse' or 'beneath'"):
        muniment.Sandbox("strict", roots, symlinks=unknown)
