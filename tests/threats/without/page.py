"""Switch off the checks of the daemon's page."""

from threats.switches import add_controls, control, return_empty, wrap_target

# fmt: off
add_controls({
    "page_headers": ("Answers of the page allow everything in a browser.", {
        "*server.page.door:PAGE_HEADERS": ()}),
    "digests_alone": ("The server stores codes and cookies in plain text.", {
        "server.page.door:digest": lambda data: data}),
    "reserved_ports": ("Another program may listen on the page's port at the other loopback address.", {
        "server.page.door:_held_beside": return_empty}),
    "owners_alone": ("Every token has the rights of the owner's token.", {
        "server.tokens:Principal.is_owner": True}),
})
# fmt: on


@wrap_target("server.page.door:PageDoor.admit")
def page_sites(real, self, method, headers):
    """A request counts as one of the page, whatever its headers are."""
    return real(self, method, {**headers, "sec-fetch-site": ["same-origin"]})


@wrap_target("server.page.door:PageDoor.admit")
def page_origins(real, self, method, headers):
    """Accept forms from any origin."""
    return real(self, method, {**headers, "origin": [f"http://{host}" for host in headers["host"]]})


@wrap_target("server.page.door:PageDoor.sign_in")
def codes_once(real, self, code):
    """A code works more than once."""
    saved = dict(self._codes)
    cookie = real(self, code)
    self._codes = saved
    return cookie


@wrap_target("=starlette.responses:Response.set_cookie")
def protected_cookies(real, self, name, value, **_):
    """Scripts can read the cookie, and other sites can send it."""
    real(self, name, value, domain="localhost")


@wrap_target("server.guard:Guard._at_door")
def page_alone(real, self, scope):
    """The daemon serves its API at the host name of the page, too."""
    from muniment.server import guard

    state = real(self, scope)
    if not scope["raw_path"].startswith((b"/w/", b"/sign", b"/static")):
        state[guard.WORKSPACE], scope["path"] = guard._path(scope["raw_path"])
        del state[guard.SESSION]
    return state


@wrap_target("server.guard:Guard._admit")
def page_name(real, self, scope):
    """A cookie opens the page at every host name."""
    has_cookie = any(name == b"cookie" for name, _ in scope["headers"])
    return self._at_door(scope) if has_cookie else real(self, scope)


@control()
def escaped_page(off):
    """Templates do not escape values."""
    from muniment.server.page import rendering

    real = rendering._environment

    def make_environment():
        environment = real.__wrapped__().overlay(autoescape=False)
        environment.globals = {**environment.globals, "parts": environment.get_template("parts.html").module}
        return environment

    off.put("server.page.rendering:_environment", make_environment)


@control()
def text_alone(off):
    """HTML in a text is rendered, and hidden text is not reported."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    off.put("server.page.rendering:_parser", lambda: parser)
    off.put("server.page.rendering:_said", lambda _: "")
