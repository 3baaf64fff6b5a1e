"""Switch off the mechanisms that protect the homes, nodes and working copies of a fleet."""

from kit.paths import forge_path
from threats.switches import (
    add_controls,
    control,
    do_nothing,
    replace_target,
    return_false,
    return_true,
    wrap_target,
)


def _change_migrations(*replacements, patches):
    """Create the tables of later migrations with other statements."""

    def make(real):
        def change_script(number, script):
            for before, after in replacements:
                assert number > 1 or before in script, before
                script = script.replace(before, after)
            return script

        return lambda package: {
            number: change_script(number, script) for number, script in real(package).items()
        }

    patches.wrap("fleet.schema:load_migrations", make)


def _replace_sql(*replacements):
    return lambda patches: _change_migrations(*replacements, patches=patches)


_READ_COMMITTED = "BEGIN ISOLATION LEVEL READ COMMITTED"
_SET_HOME = "SET LOCAL muniment.home = %s"
_ENABLE = "EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', each);"

# fmt: off
add_controls({
    "homes_apart": ("The database does not separate rows by home.", _replace_sql((_ENABLE, ""))),
    "every_table": ("One table has no row-level security.", _replace_sql(
        (_ENABLE, f"IF each <> 'blob' THEN {_ENABLE} END IF;"))),
    "invokers_views": ("A view shows everything that its owner may see.", _replace_sql(
        ("security_invoker = true", "security_invoker = false"))),
    "owners_functions": ("Any role may call a function of the owner on its own table.", _replace_sql(
        ("REVOKE EXECUTE ON FUNCTION follow_token() FROM PUBLIC;", ""))),
    "token_homes": ("Any token opens some home.", _replace_sql(
        ("FROM door WHERE digest = sent", "FROM door ORDER BY digest = sent LIMIT 1"))),
    "home_lock": ("Transactions of a home run concurrently.", {
        "fleet.postgres:_BEGIN": f"{_READ_COMMITTED}; {_SET_HOME}; SELECT epoch FROM home"}),
    "read_committed": ("A transaction uses the default isolation level of the server.", {
        "fleet.postgres:_BEGIN": f"BEGIN; {_SET_HOME}; SELECT epoch FROM home FOR NO KEY UPDATE"}),
    "replayed_names": ("A copy contains files with any name from the ledger.", {
        "kernel.write:check_suffix": do_nothing,
        "kernel.write:INDEX_NAME": "", "kernel.write:INDEX_DIRECTORY": ""}),
    "compared_copies": ("The files of a copy are not compared with the ledger.", {
        "fleet.working_copies:_has_foreign_files": return_false}),
    "current_bytes": ("Any file in a copy counts as up to date.", {
        "*store.ledger:is_current": return_true}),
    "home_shares": ("The owner of one home has the connection slots of the owner of all.", {
        "server.tokens:Principal.share": property(lambda self: self.name)}),
    "home_keys": ("All homes share one key.", {"*fleet.homes:derive_home_key": lambda fleet, _: fleet}),
    "served_homes": ("Requests are served by the node instead of a home.", {
        "fleet.node:FleetNode.get_core": lambda self, _: self}),
    "fleet_keys": ("A node may have any key.", {"fleet.schema:_require_key": do_nothing}),
    "role_rights": ("The rights of a node's role are not checked.", {
        "fleet.schema:_check_role": do_nothing}),
    "known_tables": ("A node serves from tables of any version.", {
        "fleet.schema:_check_version": do_nothing}),
    "verified_servers": ("Every server counts as one of this machine.", {
        "fleet.address:_is_local": return_true}),
    "private_urls": ("A file with a password may be readable by others.", {
        "fleet.address:stat.S_IRGRP": 0, "fleet.address:stat.S_IROTH": 0}),
})
# fmt: on


@wrap_target("fleet.postgres:HomeLedger.__init__")
def epochs(real, self, pool, home, _epoch):
    """A transaction does not check that the node still has the lease."""
    real(self, pool, home, None)


@control()
def canonical_rows(off):
    """Paths from the ledger are not validated, and handles lead anywhere."""
    off.disable("layer_one")
    off.put("fleet.copy_files:canonicalise", lambda text, _: forge_path(*text.split("/", 1)))


@control()
def counted_erasures(off):
    """Erasures after the creation of a copy are not counted."""
    off.disable("compared_copies")
    off.put(
        "fleet.copy_files:_POSITION_QUERY",
        "SELECT number, 0, epoch FROM home WHERE home = current_setting('muniment.home')",
    )
    off.put("fleet.copy_files:ERASED", "unused")


@control()
def spoiled_copies(off):
    """A damaged copy is still used."""
    off.disable("compared_copies")
    off.put("fleet.working_copies:WorkingCopy.spoil", do_nothing)


@control()
def unmarked_copies(off):
    """A copy is marked valid while it is being changed."""
    off.disable("compared_copies")
    off.put("fleet.working_copies:WorkingCopy._delete_mark", do_nothing)


@control()
def claimed_copies(off):
    """An existing file in a copy is replaced without a check."""
    off.disable("compared_copies", "claimed_file")


@wrap_target("fleet.address:_parse_url")
def argument_passwords(real, url):
    """A password in an argument is accepted."""
    return {name: value for name, value in real(url).items() if name != "password"}


@replace_target("fleet.node:FleetNode.run_query")
async def threaded_queries(_node, request):
    """The event loop waits for the database."""
    return request()
