"""A chat loop on asyncio: no hook gives the loop away or holds it up, and nothing is left when it ends.

What lets a recall go on is always set by the loop itself, so that a hook that waited would wait for ever.
"""

from __future__ import annotations

import asyncio

from kit.recall.places import DARK, WAIT, Gate, calling, result, settle, user
from muniment.confine.cancel import Cancel
from muniment.recall.context import Budgets
from muniment.recall.session import Reason


def run(host):
    """Run it, and see that it left no task."""

    async def watched():
        async with asyncio.timeout(WAIT):
            await host()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(watched())


async def opened(stage, **more):
    """Opening reads files, so it is done on a thread."""
    return await asyncio.to_thread(stage.conversation, Budgets(project=0), clock=stage.clock, **more)


def test_hooks_return_while_the_recall_and_the_reading_of_the_tiers_hang_and_the_loop_turns_on(
    stage, monkeypatch
):
    """No hook gives the loop away either: what was to be called soon is called only at the `await`."""

    async def host():
        conversation, gate, reading = await opened(stage), stage.gate(), stage.closing(Gate())
        system, turned = conversation.system_part, []
        monkeypatch.setattr(conversation._static, "refresh", reading.wait)
        asyncio.get_running_loop().call_soon(turned.append, "turned")
        conversation.on_user_turn(DARK)
        conversation.on_path("src/deploy.py")
        history = conversation.before_turn([user(DARK)], ["Mind the gap."])
        assert history == [user("Mind the gap."), user(DARK)]
        for number in range(14):
            history = conversation.after_tools([*history, calling(number), result(number)])
        assert len(history) == 2 + 2 * 14
        conversation.as_json()
        assert (conversation.system_part, turned) == (system, [])
        await asyncio.sleep(0)
        assert turned == ["turned"]
        for each in (gate, reading):
            assert await asyncio.to_thread(each.reached.wait, WAIT)
        conversation.abort(Reason.TOKEN_LIMIT)
        conversation.on_reset()
        await asyncio.to_thread(conversation.close)
        assert conversation.session.outcomes[Reason.TOKEN_LIMIT] == 1

    run(host)


def test_a_task_that_is_cancelled_cancels_the_recall_of_its_turn(stage):
    """A host bridges its task to `parent`; the recall ends though its gate stays shut."""

    async def host():
        with Cancel() as parent:
            conversation, gate = await opened(stage, parent=parent), stage.gate()

            async def turn():
                conversation.before_turn([user(DARK)])
                await asyncio.Event().wait()  # The model, which never answers.

            task = asyncio.create_task(turn())
            task.add_done_callback(lambda _: parent.set())
            await asyncio.to_thread(gate.reached.wait, WAIT)
            task.cancel()
            await asyncio.wait({task})
            await asyncio.to_thread(settle, conversation)
            history = [user(DARK), calling(1), result(1)]
            assert conversation.after_tools(history) == history
            assert conversation.session.outcomes[Reason.PARENT_CANCELLED] == 1
            conversation.close()

    run(host)
