"""A chat loop on asyncio: no hook gives the loop away or holds it up, and nothing is left when it ends.

The rows of the prefetch's table are carried out on a loop by `test_session.py` as well; here it is the hooks
of a whole conversation. What lets a recall go on is always set by the loop itself, so that a hook that waited
for it would wait for ever.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, closing, contextmanager

import pytest

from kit.recall.places import (
    WAIT,
    Gate,
    Slow,
    calling,
    entry,
    ground,
    nothing_left_behind,
    result,
    settle,
    user,
)
from muniment.confine.cancel import Cancel
from muniment.recall.context import Budgets
from muniment.recall.conversation import Conversation
from muniment.recall.session import Reason
from muniment.testing.minds import FakeClock

ENTRIES = {
    "project/editor.md": entry("Editor theme", "Wants dark mode in the editor."),
    "project/deploy.md": entry("Deploy day", "Deploys the billing service on Tuesdays."),
}
DARK, DEPLOY = "dark mode for my editor?", "when do we deploy billing?"


class Stage:
    """What a host on a loop has at hand."""

    def __init__(self, recaller, stack):
        self.recaller, self._stack = recaller, stack
        self.clock = FakeClock(100.0)

    async def conversation(self, **more):
        """As the module's docstring has it: opening reads files, so it is done on a thread."""
        without_tiers = Budgets(project=0)
        made = await asyncio.to_thread(
            Conversation, self.recaller, budgets=without_tiers, clock=self.clock, **more
        )
        return self._stack.enter_context(made)

    def gate(self):
        gate = self._stack.enter_context(closing(Gate()))
        self.recaller.gates.append(gate)
        return gate


@contextmanager
def staged(base):
    with (
        nothing_left_behind(),
        ground(base, entries=ENTRIES) as made,
        made.recaller(Slow) as recaller,
        ExitStack() as stack,
    ):
        yield Stage(recaller, stack)


@pytest.fixture
def stage(tmp_path):
    with staged(tmp_path) as stage:
        yield stage


def run(host):
    """Run it, and see that it left no task."""

    async def watched():
        async with asyncio.timeout(WAIT):
            await host()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(watched())


async def settled(conversation):
    await asyncio.to_thread(settle, conversation.session)


def texts(messages):
    return [message["content"] for message in messages]


def test_hooks_return_while_the_recall_and_the_reading_of_the_tiers_hang_and_the_loop_turns_on(
    stage, monkeypatch
):
    """No hook gives the loop away either: what was to be called soon is called only at the `await`."""

    async def host():
        conversation, gate, reading = await stage.conversation(), stage.gate(), stage.gate()
        stage.recaller.gates.pop()
        monkeypatch.setattr(conversation._static, "refresh", reading.wait)
        turned = []
        asyncio.get_running_loop().call_soon(turned.append, "turned")
        conversation.on_user_turn(DARK)
        conversation.on_path("src/deploy.py")
        history = conversation.before_turn([user(DARK)], ["Mind the gap."])
        assert texts(history) == ["Mind the gap.", DARK]
        for number in range(14):
            history = conversation.after_tools([*history, calling(number), result(number)])
        assert len(history) == 2 + 2 * 14
        conversation.as_json()
        assert conversation.system_part == ""
        assert turned == []
        await asyncio.sleep(0)
        assert turned == ["turned"]
        await asyncio.to_thread(gate.reached.wait, WAIT)
        await asyncio.to_thread(reading.reached.wait, WAIT)
        conversation.abort(Reason.TOKEN_LIMIT)
        conversation.on_reset()
        await asyncio.to_thread(conversation.close)
        assert conversation.session.outcomes == {Reason.TOKEN_LIMIT: 1}

    run(host)


def test_a_task_that_is_cancelled_cancels_the_recall_of_its_turn(stage):
    """A host bridges its task to `parent`; the recall ends though its gate stays shut."""

    async def host():
        with Cancel() as parent:
            conversation, gate = await stage.conversation(parent=parent), stage.gate()

            async def turn():
                conversation.on_user_turn(DARK)
                conversation.before_turn([user(DARK)])
                await asyncio.Event().wait()  # The model, which never answers.

            task = asyncio.create_task(turn())
            task.add_done_callback(lambda _: parent.set())
            await asyncio.to_thread(gate.reached.wait, WAIT)
            task.cancel()
            await asyncio.wait({task})
            await settled(conversation)
            history = [user(DARK), calling(1), result(1)]
            assert conversation.after_tools(history) == history
            assert conversation.session.outcomes == {Reason.PARENT_CANCELLED: 1}
            conversation.close()

    run(host)


def test_many_conversations_on_one_loop_do_not_hold_each_other_up(stage):
    """The first one's recall hangs; all others are served meanwhile."""

    async def host():
        hanging, gate = await stage.conversation(), stage.gate()
        hanging.on_user_turn(DARK)
        await asyncio.to_thread(gate.reached.wait, WAIT)
        for _ in range(5):
            other = await stage.conversation()
            other.on_user_turn(DEPLOY)
            await settled(other)
            assert "on Tuesdays" in other.before_turn([user(DEPLOY)])[0]["content"]
        assert hanging.before_turn([user(DARK)]) == [user(DARK)]

    run(host)
