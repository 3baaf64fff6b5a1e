"""Memories of other tools, in the formats that these tools write.

Each function writes one under a directory and returns its path. The docstring contains the source of the
format; the texts were written for these tests.
"""

from __future__ import annotations

import json
import zipfile

from kit.memories import put

TYPED = """---
name: prefers-tabs
description: Indentation in Go and Makefiles
metadata:
  node_type: memory
  type: feedback
modified: 2026-10-02T09:14:00.000Z
---
Use tabs in Go files.

**Why:** gofmt. **How to apply:** never reformat files of others. See [[ci-setup]].
"""


def claude_code(base):
    """Write the auto memory of Claude Code, `~/.claude/projects/<project>/memory/`: five facts and an index.

    Source: code.claude.com/docs/en/memory; front matter of Claude Code 2.1 and of older versions.
    """
    memory = base / ".claude" / "projects" / "-home-me-api" / "memory"
    put(memory, "MEMORY.md", "# Memory\n\n- [Tabs](prefers-tabs.md) — indentation\n- [CI](ci-setup.md)\n")
    put(memory, "prefers-tabs.md", TYPED)
    put(
        memory,
        "ci-setup.md",
        "---\nname: CI setup\ndescription: Where CI runs\ntype: reference\n---\nCI runs on Buildkite.\n",
    )
    put(memory, "who.md", b"\xef\xbb\xbf---\r\nname: Me\r\ntype: user\r\n---\r\nMy name is Ana.\r\n")
    put(memory, "broken.md", "---\ndescription: a: b\ntype: nothing\n---\nThe API speaks gRPC.\n")
    put(memory, "deploys/plain.md", "We deploy on Thursdays.\n")
    put(memory.parent, "5f0c.jsonl", '{"type":"user","message":"a transcript, which nobody reads"}\n')
    return memory


def mcp_memory(base):
    """Write `memory.jsonl` of @modelcontextprotocol/server-memory: two entities with facts, one without.

    Source: modelcontextprotocol/servers, src/memory/index.ts, `saveGraph`.
    """
    rows = [
        {
            "type": "entity",
            "name": "Ana",
            "entityType": "person",
            "observations": ["Prefers tabs", "Works from Lisbon"],
        },
        {"type": "entity", "name": "billing-api", "entityType": "project", "observations": []},
        {"type": "relation", "from": "Ana", "to": "billing-api", "relationType": "maintains"},
        {"type": "relation", "from": "deploy bot", "to": "billing-api", "relationType": "deploys"},
    ]
    return put(base, "memory.jsonl", "\n".join(map(json.dumps, rows)))


def mem0(base):
    """Write the result of `Memory.get_all()` of mem0: three valid rows, a replaced one, and an older copy.

    Source: mem0ai/mem0, mem0/memory/main.py, `_get_all_from_vector_store`; docs/openapi.json.
    """
    row = {"hash": "9c1f3a", "metadata": None, "updated_at": None, "user_id": "ana", "agent_id": "coder"}
    rows = [
        row
        | {
            "id": "a1",
            "memory": "Prefers tabs over spaces",
            "created_at": "2026-03-04T10:20:30.123456+00:00",
        },
        row | {"id": "a2", "memory": "Deploys on Tuesdays", "created_at": "2024-07-20T01:30:36.275141-07:00"},
        row | {"id": "a2", "memory": "Deploys on Thursdays", "updated_at": "2026-03-05T08:00:00+00:00"},
        row | {"id": "a3", "memory": "Likes green tea", "categories": ["drinks"], "created_at": "2026-01-01"},
        row | {"id": "a4", "memory": "Lives in Porto", "replaced_by": "a5", "created_at": "2026-01-01"},
    ]
    return put(base, "mem0.json", json.dumps({"results": rows}))


def said(number, parent, role, text, recipient="all", name=None):
    """Build a node of a conversation."""
    message = {
        "id": number,
        "author": {"role": role, "name": name, "metadata": {}},
        "create_time": None,
        "content": {"content_type": "text", "parts": [text]},
        "status": "finished_successfully",
        "metadata": {},
        "recipient": recipient,
        "channel": None,
    }
    return {"id": number, "parent": parent, "children": [], "message": message}


def conversation(title, *nodes):
    root = {"id": "client-created-root", "message": None, "parent": None, "children": ["n1"]}
    mapping = {node["id"]: node for node in (root, *nodes)}
    return {"title": title, "create_time": 1765432100.5, "mapping": mapping, "current_node": nodes[-1]["id"]}


def chatgpt(base):
    """Write a ChatGPT export, a zip with conversations in two files: three saved memories, one of them twice.

    Source: exports of ChatGPT of 2025 and 2026; OpenAI does not document the format. A message of the
        assistant to the tool `bio` is a saved memory; the tool confirms it with "Model set context updated.".
    """
    saves = conversation(
        "Editor setup",
        said("n1", "client-created-root", "user", "Remember that I use tabs. My card is in the drawer."),
        said("n2", "n1", "assistant", "User prefers tabs over spaces.", recipient="bio"),
        said("n3", "n2", "tool", "Model set context updated.", recipient="assistant", name="bio"),
        said("n4", "n1", "assistant", "User works from Lisbon.", recipient="bio"),
    )
    shown = said("n1", "client-created-root", "tool", "")
    shown["message"]["content"] = {
        "content_type": "model_editable_context",
        "model_set_context": (
            "1. [2026-01-15]. User prefers tabs over spaces.\n2. [2026-02-01]. User likes tea.\n"
        ),
    }
    chatter = conversation("Weather", said("n1", "client-created-root", "user", "Is it sunny?"))
    path = base / "chatgpt.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations-000.json", json.dumps([chatter, saves]))
        archive.writestr("conversations-001.json", json.dumps([conversation("Tea", shown)]))
        archive.writestr("shared_conversations.json", "[]")
        archive.writestr("chat.html", "<html></html>")
        archive.writestr("__MACOSX/._conversations-000.json", b"\0\x05\x16\x07")
    return path


NOTE = """---
title: Editor setup
type: note
permalink: dev/editor-setup
tags: [editor, '#preferences']
created: 2026-02-03T10:00:00
---
# Editor setup

## Observations
- [preference] Tabs over spaces in Go #style (decided in review)
- [ ] try another editor

## Relations
- relates_to [[CI setup]] (same repo)
"""


def basic_memory(base):
    """Write a vault of Basic Memory: three notes, next to files of a note editor.

    Source: basicmachines-co/basic-memory, docs/NOTE-FORMAT.md.
    """
    vault = base / "vault"
    put(vault, "dev/Editor setup.md", NOTE)
    put(vault, "dev/What's new?.md", "Postgres 17 is in staging.\n")
    put(
        vault,
        "CI setup.md",
        "---\ntitle: CI setup\npermalink: ci-setup\ntags: ci, a\n---\n- [tech] It runs on Buildkite #ci\n",
    )
    put(vault, ".obsidian/workspace.md", "no note\n")
    put(vault, "picture.png", b"\x89PNG")
    return vault
