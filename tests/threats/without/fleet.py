"""A fleet without the separation of homes, nodes and working copies."""

from kit.paths import forged
from threats.switches import around, control, false, instead, none, table, true


def _migrated(*replacements, patches):
    """Create the tables of later migrations with other statements."""

    def make(real):
        def changed(number, script):
            for before, after in replacements:
                assert number > 1 or before in script, before
                script = script.replace(before, after)
            return script

        return lambda package: {number: changed(number, script) for number, script in real(package).items()}

    patches.wrap("fleet.schema:migrations", make)


def _by(*replacements):
    return lambda patches: _migrated(*replacements, patches=patches)


_READ_COMMITTED = "BEGIN ISOLATION LEVEL READ COMMITTED"
_NAMED = "SET LOCAL muniment.home = %s"
_ENABLE = "EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', each);"

# fmt: off
table({
    "homes_apart": ("Disable row-level security.", _by((_ENABLE, ""))),
    "every_table": ("Omit one table from row-level security.", _by(
        (_ENABLE, f"IF each <> 'blob' THEN {_ENABLE} END IF;"))),
    "invokers_views": ("Run a view with the rights of its owner.", _by(
        ("security_invoker = true", "security_invoker = false"))),
    "owners_functions": ("Let any role call a function of the owner on a chosen table.", _by(
        ("REVOKE EXECUTE ON FUNCTION follow_token() FROM PUBLIC;", ""))),
    "whose_door": ("Map any token to some home.", _by(
        ("FROM door WHERE digest = sent", "FROM door ORDER BY digest = sent LIMIT 1"))),
    "home_lock": ("Run transactions of a home concurrently.", {
        "fleet.postgres:_BEGIN": f"{_READ_COMMITTED}; {_NAMED}; SELECT epoch FROM home"}),
    "read_committed": ("Use the server's default isolation level.", {
        "fleet.postgres:_BEGIN": f"BEGIN; {_NAMED}; SELECT epoch FROM home FOR NO KEY UPDATE"}),
    "replayed_names": ("Write every path of a ledger into a copy.", {
        "kernel.write:check_suffix": none,
        "kernel.write:INDEX_NAME": "", "kernel.write:INDEX_DIRECTORY": ""}),
    "compared_copies": ("Skip the comparison of a copy's files with the ledger.", {
        "fleet.copies:_has_foreign": false}),
    "current_bytes": ("Treat any content of a copy as the ledger's.", {
        "*store.ledger:is_current": true}),
    "home_shares": ("Give the owner of any home the request slots of the operator.", {
        "server.tokens:Principal.share": property(lambda self: self.name)}),
    "home_keys": ("Use one key for all homes.", {"*fleet.homes:key_of": lambda fleet, _: fleet}),
    "served_homes": ("Serve every request by the node instead of a home.", {
        "fleet.node:FleetNode.of": lambda self, _: self}),
    "fleet_keys": ("Accept any key of a node.", {"fleet.schema:_require_key": none}),
    "seeing_roles": ("Skip the check of the rights of a node's role.", {"fleet.schema:_check_role": none}),
    "known_tables": ("Serve from tables of any version.", {"fleet.schema:_check_version": none}),
    "verified_servers": ("Treat every server as local.", {"fleet.address:_is_here": true}),
    "private_urls": ("Accept a password file that others may read.", {
        "fleet.address:stat.S_IRGRP": 0, "fleet.address:stat.S_IROTH": 0}),
})
# fmt: on


@around("fleet.postgres:HomeLedger.__init__")
def epochs(real, self, pool, home, _epoch):
    """Commit a transaction without comparing the lease."""
    real(self, pool, home, None)


@control()
def canonical_rows(off):
    """Use the paths of a ledger unchecked, with handles that open any path."""
    off.also("layer_one")
    off.put("fleet.copied:canonicalise", lambda text, _: forged(*text.split("/", 1)))


@control()
def counted_erasures(off):
    """Skip the check for erasures since a copy was created."""
    off.also("compared_copies")
    off.put(
        "fleet.copied:_STAND",
        "SELECT number, 0, epoch FROM home WHERE home = current_setting('muniment.home')",
    )
    off.put("fleet.copied:ERASED", "nothing is")


@control()
def spoiled_copies(off):
    """Keep a copy in any state."""
    off.also("compared_copies")
    off.put("fleet.copies:WorkingCopy.spoil", none)


@control()
def unmarked_copies(off):
    """Mark a copy as complete while it changes."""
    off.also("compared_copies")
    off.put("fleet.copies:WorkingCopy._unmark", none)


@control()
def claimed_copies(off):
    """Replace a file in a copy without checking its content."""
    off.also("compared_copies", "claimed_file")


@around("fleet.address:_parts")
def argument_passwords(real, url):
    """Skip the check for a password in an argument."""
    return {name: value for name, value in real(url).items() if name != "password"}


@instead("fleet.node:FleetNode.asked")
async def asked_in_threads(_node, ask):
    """Call the database on the event loop."""
    return ask()
