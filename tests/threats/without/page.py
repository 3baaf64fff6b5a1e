"""The review page without access checks and escaping."""

from threats.switches import around, control, nothing, table

# fmt: off
table({
    "page_headers": ("Send the page without its security headers.", {
        "*server.page.door:PAGE_HEADERS": ()}),
    "digests_alone": ("Store codes and cookies unhashed.", {
        "server.page.door:digest": lambda data: data}),
    "held_ports": ("Leave the page's port at the other loopback address free.", {
        "server.page.door:_held_beside": nothing}),
    "owners_alone": ("Give every token the rights of the owner.", {"server.tokens:Principal.is_owner": True}),
})
# fmt: on


@around("server.page.door:PageDoor.admit")
def page_sites(real, self, method, headers):
    """Accept requests of every source that a browser reports."""
    return real(self, method, {**headers, "sec-fetch-site": ["same-origin"]})


@around("server.page.door:PageDoor.admit")
def page_origins(real, self, method, headers):
    """Accept forms from any origin."""
    return real(self, method, {**headers, "origin": [f"http://{host}" for host in headers["host"]]})


@around("server.page.door:PageDoor.sign_in")
def codes_once(real, self, code):
    """Accept a code repeatedly."""
    kept = dict(self._codes)
    cookie = real(self, code)
    self._codes = kept
    return cookie


@around("=starlette.responses:Response.set_cookie")
def kept_cookies(real, self, name, value, **_):
    """Let scripts read the cookie, and let other sites send it."""
    real(self, name, value, domain="localhost")


@around("server.guard:Guard._at_door")
def page_alone(real, self, scope):
    """Serve all routes of the daemon at the name of the page."""
    from muniment.server import guard

    state = real(self, scope)
    if not scope["raw_path"].startswith((b"/w/", b"/sign", b"/static")):
        state[guard.WORKSPACE], scope["path"] = guard._path(scope["raw_path"])
        del state[guard.SESSION]
    return state


@around("server.guard:Guard._admit")
def page_name(real, self, scope):
    """Accept the cookie at every host name."""
    is_theirs = any(name == b"cookie" for name, _ in scope["headers"])
    return self._at_door(scope) if is_theirs else real(self, scope)


@control()
def escaped_page(off):
    """Insert values into templates unescaped."""
    from muniment.server.page import rendering

    real = rendering._environment

    def bare():
        made = real.__wrapped__().overlay(autoescape=False)
        made.globals = {**made.globals, "parts": made.get_template("parts.html").module}
        return made

    off.put("server.page.rendering:_environment", bare)


@control()
def text_alone(off):
    """Render HTML of a text as HTML, without the check for readable text."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    off.put("server.page.rendering:_parser", lambda: parser)
    off.put("server.page.rendering:_said", lambda _: "")
