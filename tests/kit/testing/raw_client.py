"""Clients of nothing but sockets and `http.client`, for tests of the scripted server."""

import contextlib
import http.client
import json
import socket
from urllib.parse import urlsplit

SECONDS = 10


def connect(server):
    """A plain socket to the server."""
    return socket.create_connection(("127.0.0.1", urlsplit(server.base_url).port), timeout=SECONDS)


def written(body=b"{}", path="/v1/chat/completions", **headers):
    """The bytes of a request."""
    lines = {"Host": "127.0.0.1", "Content-Length": str(len(body)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def asking(server, body=b"{}"):
    """A socket on which a request was sent."""
    client = connect(server)
    client.sendall(written(body))
    return client


def read_all(client):
    """Everything up to the end of the connection."""
    return b"".join(iter(lambda: client.recv(65536), b""))


def ask(server, body=None, method="POST", path="/v1/chat/completions", **headers):
    """(status, headers, body) of an answer as `http.client` reads it; the body at most a megabyte of it."""
    parts = urlsplit(server.base_url)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", parts.port, timeout=SECONDS)) as client:
        client.request(method, path, None if body is None else json.dumps(body), headers)
        answer = client.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, headers, answer.read(1 << 20)


def said(server, body=None):
    """The message and finish_reason of a completion."""
    status, _, content = ask(server, body or {"messages": [], "tools": [{}]})
    assert status == 200, content
    (choice,) = json.loads(content)["choices"]
    return choice["message"], choice["finish_reason"]
