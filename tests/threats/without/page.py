"""The page of the daemon, without what keeps others out and what keeps texts texts."""

from threats.switches import around, control, nothing, table

# fmt: off
table({
    "page_headers": ("Answers of the page let a browser do what it likes.", {
        "*server.page.door:PAGE_HEADERS": ()}),
    "digests_alone": ("The door keeps codes and cookies as they are.", {
        "server.page.door:digest": lambda data: data}),
    "held_ports": ("Another program may have the port of the page at the other loopback address.", {
        "server.page.door:_held_beside": nothing}),
    "owners_alone": ("Every token may do what the owner's may.", {"server.tokens:Principal.is_owner": True}),
})
# fmt: on


@around("server.page.door:PageDoor.admit")
def page_sites(real, self, method, headers):
    """Whatever a browser says, a request comes from the page."""
    return real(self, method, {**headers, "sec-fetch-site": ["same-origin"]})


@around("server.page.door:PageDoor.admit")
def page_origins(real, self, method, headers):
    """A form may come from any origin."""
    return real(self, method, {**headers, "origin": [f"http://{host}" for host in headers["host"]]})


@around("server.page.door:PageDoor.sign_in")
def codes_once(real, self, code):
    """A code works as often as it is sent."""
    kept = dict(self._codes)
    cookie = real(self, code)
    self._codes = kept
    return cookie


@around("=starlette.responses:Response.set_cookie")
def kept_cookies(real, self, name, value, **_):
    """A script may read the cookie, and other sites have it sent."""
    real(self, name, value, domain="localhost")


@around("server.guard:Guard._at_door")
def page_alone(real, self, scope):
    """At the name of the page the daemon answers whatever it answers elsewhere."""
    from muniment.server import guard

    state = real(self, scope)
    if not scope["raw_path"].startswith((b"/w/", b"/sign", b"/static")):
        state[guard.WORKSPACE], scope["path"] = guard._path(scope["raw_path"])
        del state[guard.SESSION]
    return state


@around("server.guard:Guard._admit")
def page_name(real, self, scope):
    """A cookie opens the page at every name."""
    is_theirs = any(name == b"cookie" for name, _ in scope["headers"])
    return self._at_door(scope) if is_theirs else real(self, scope)


@control()
def escaped_page(off):
    """A template puts in what it is given as it stands."""
    from muniment.server.page import rendering

    real = rendering._environment

    def bare():
        made = real.__wrapped__().overlay(autoescape=False)
        made.globals = {**made.globals, "parts": made.get_template("parts.html").module}
        return made

    off.put("server.page.rendering:_environment", bare)


@control()
def text_alone(off):
    """HTML in a text is HTML of the page, and nobody looks whether all is still to be read."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    off.put("server.page.rendering:_parser", lambda: parser)
    off.put("server.page.rendering:_said", lambda _: "")
