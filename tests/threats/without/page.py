"""Switch off the checks of the daemon's page."""

from threats.switches import add_controls, control, return_empty, wrap_target

# fmt: off
add_controls({
    "page_headers": ("Answers of the page allow everything in a browser.", {
        "*server.page.access:PAGE_HEADERS": ()}),
    "digests_alone": ("The server stores codes and cookies in plain text.", {
        "server.page.access:digest": lambda data: data}),
    "reserved_ports": ("Another program may listen on the page's port at the other loopback address.", {
        "server.page.access:_reserve_other_addresses": return_empty}),
    "owners_alone": ("Every token has the rights of the owner's token.", {
        "server.tokens:Principal.is_owner": True}),
})
# fmt: on


@wrap_target("server.page.access:PageAccess.admit")
def page_sites(real, self, method, headers):
    """A request counts as one of the page, with any headers."""
    return real(self, method, {**headers, "sec-fetch-site": ["same-origin"]})


@wrap_target("server.page.access:PageAccess.admit")
def page_origins(real, self, method, headers):
    """Accept forms from any origin."""
    return real(self, method, {**headers, "origin": [f"http://{host}" for host in headers["host"]]})


@wrap_target("server.page.access:PageAccess.sign_in")
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


@wrap_target("server.guard:Guard._admit_to_page")
def page_alone(real, self, scope):
    """The daemon serves its API at the host name of the page, too."""
    from muniment.server import guard

    state = real(self, scope)
    if not scope["raw_path"].startswith((b"/w/", b"/sign", b"/static")):
        state[guard.WORKSPACE], scope["path"] = guard._split_path(scope["raw_path"])
        del state[guard.SESSION]
    return state


@wrap_target("server.guard:Guard._admit")
def page_name(real, self, scope):
    """A cookie opens the page at every host name."""
    has_cookie = any(name == b"cookie" for name, _ in scope["headers"])
    return self._admit_to_page(scope) if has_cookie else real(self, scope)


@control()
def escaped_page(off):
    """Templates do not escape values."""
    from muniment.server.page import rendering

    real = rendering._create_environment

    def make_environment():
        environment = real.__wrapped__().overlay(autoescape=False)
        environment.globals = {**environment.globals, "parts": environment.get_template("parts.html").module}
        return environment

    off.put("server.page.rendering:_create_environment", make_environment)


@control()
def text_alone(off):
    """HTML in a text is rendered, and hidden text is not reported."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    off.put("server.page.rendering:_create_parser", lambda: parser)
    off.put("server.page.rendering:_strip_markup", lambda _: "")
