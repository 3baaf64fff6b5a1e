"""What the scripted models of these tests think; see `muniment.testing.minds` for the form."""

from __future__ import annotations

from muniment.testing.minds import AskForCalls, Say


def writes(path, text, before=()):
    """Makes the calls of `before`, then writes a file, then says so: one call a turn."""
    steps = [*before, ("write_file", {"path": path, "content": f"---\nname: T\ntype: user\n---\n{text}\n"})]

    def mind(request):
        done = sum(1 for message in request.body["messages"] if message["role"] == "tool")
        return AskForCalls([steps[done]]) if done < len(steps) else Say("Saved.")

    return mind


def says(text):
    """Writes nothing, and says so much."""
    return lambda _: Say(text)


def meddling(mind, meddle):
    """`mind`, while somebody does something before its last words."""

    def meddled(request):
        thought = mind(request)
        if isinstance(thought, Say):
            meddle()
        return thought

    return meddled
