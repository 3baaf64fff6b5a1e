"""A filesystem server of the Model Context Protocol with a selectable behaviour.

python fake_server.py TEMPER ROOT…

`fair` resolves links and compares; `chatty` also sends unsolicited messages; `text` compares paths as text;
`bare` has one tool. The others misbehave: `garbage`, `silent`, `ends`, `refuses`, `deaf` (never ends), and
`mute-tools`.
"""

import json
import os
import signal
import sys
from pathlib import Path

TOOLS = ("read_text_file", "list_directory", "write_file", "edit_file")


def send(message):
    sys.stdout.write(f"{json.dumps({'jsonrpc': '2.0', **message})}\n")
    sys.stdout.flush()


def resolved(path, roots, temper):
    full = os.path.normpath(path) if temper == "text" else os.path.realpath(path)
    if not any(full == root or full.startswith(f"{root}/") for root in roots):
        raise PermissionError(f"{full} is outside")
    return Path(full)


def act(tool, arguments, roots, temper):
    path = resolved(arguments["path"], roots, temper)
    if tool == "read_text_file":
        return path.read_text()
    if tool == "list_directory":
        return "\n".join(f"[FILE] {each.name}" for each in path.iterdir())
    text = arguments.get("content")
    for edit in arguments.get("edits", ()):
        text = path.read_text().replace(edit["oldText"], edit["newText"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return f"wrote {path}"


def answer(message, roots, temper):
    match message["method"]:
        case "initialize":
            return {"serverInfo": {"name": "fake", "version": "1.0"}}
        case "tools/list":
            if temper == "mute-tools":
                sys.exit()
            return {"tools": [{"name": name} for name in (TOOLS[:1] if temper == "bare" else TOOLS)]}
    try:
        text = act(message["params"]["name"], message["params"]["arguments"], roots, temper)
    except Exception as error:  # noqa: BLE001
        return {"content": [{"type": "text", "text": repr(error)}], "isError": True}
    return {"content": [{"type": "text", "text": text}]}


def main(temper, roots):
    if temper == "ends":
        sys.exit("it ends")
    if temper == "silent":
        signal.pause()
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        if temper == "garbage":
            sys.stdout.write("Listening on port 3000\n")
            sys.stdout.flush()
            continue
        if temper == "chatty":
            send({"method": "notifications/message", "params": {}})
            send({"id": message["id"], "method": "roots/list"})
        refusal = {"error": {"code": -32602, "message": "not that version"}}
        told = refusal if temper == "refuses" else {"result": answer(message, roots, temper)}
        send({"id": message["id"], **told})
    while temper == "deaf":
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
