"""Reads a stream of events as a browser does."""

from __future__ import annotations

import json


class Event:
    """One event as it came.

    Attributes:
        id: None where it has none.
        type, document, data: its name, the JSON document, and that one's `data`.
    """

    def __init__(self, fields):
        self.id, self.type = fields.get("id"), fields.get("event", "message")
        self.document = json.loads(fields["data"])
        self.data = self.document["data"]

    @property
    def number(self):
        return int(self.id.partition("-")[2])

    def __repr__(self):
        return f"<{self.id} {self.document}>"


class Follower:
    """Reads events as a browser does.

    Attributes:
        last_id: of the last event that was read, also of one without data.
        seen: every event so far.
    """

    def __init__(self, response):
        self._lines, self.last_id, self.seen = response.iter_lines(), None, []

    def __iter__(self):
        return self

    def __next__(self):
        """The next event; nothing for ten seconds raises `httpx2.ReadTimeout`."""
        fields = {}
        for line in self._lines:
            name, _, value = line.partition(":")
            if line == "":
                if "id" in fields:
                    self.last_id = fields["id"]
                if "data" in fields:
                    event = Event(fields)
                    self.seen.append(event)
                    return event
                fields = {}
            elif name == "data" and "data" in fields:
                fields["data"] += "\n" + value.removeprefix(" ")
            elif name:
                fields[name] = value.removeprefix(" ")
        raise StopIteration

    def start(self):
        """Read on to where the stream says that it begins."""
        for line in self._lines:
            if line.startswith("id:"):
                self.last_id = line.partition(":")[2].strip()
                return self
        raise AssertionError("the stream ended")

    def until(self, condition):
        """The events up to the first for which `condition` holds, with it."""
        found = []
        for event in self:
            found.append(event)
            if condition(event):
                return found
        raise AssertionError(f"the stream ended after {found}")
