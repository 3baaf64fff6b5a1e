"""A fleet, without what keeps its homes, its nodes and its working copies in order."""

from kit.paths import forged
from threats.switches import around, control, false, instead, none, table, true


def _migrated(*replacements, patches):
    """Tables of whoever migrates from now on are made by other statements."""

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
    "homes_apart": ("The server keeps no rows apart by home.", _by((_ENABLE, ""))),
    "every_table": ("A table is forgotten where rows are kept apart by home.", _by(
        (_ENABLE, f"IF each <> 'blob' THEN {_ENABLE} END IF;"))),
    "invokers_views": ("A view sees what its owner may see.", _by(
        ("security_invoker = true", "security_invoker = false"))),
    "owners_functions": ("Any role may have a function of the owner's act on a table of its own.", _by(
        ("REVOKE EXECUTE ON FUNCTION follow_token() FROM PUBLIC;", ""))),
    "whose_door": ("Any token leads to some home.", _by(
        ("FROM door WHERE digest = sent", "FROM door ORDER BY digest = sent LIMIT 1"))),
    "home_lock": ("Transactions of a home run side by side.", {
        "fleet.postgres:_BEGIN": f"{_READ_COMMITTED}; {_NAMED}; SELECT epoch FROM home"}),
    "read_committed": ("A transaction sees what the server's default lets it see.", {
        "fleet.postgres:_BEGIN": f"BEGIN; {_NAMED}; SELECT epoch FROM home FOR NO KEY UPDATE"}),
    "replayed_names": ("What a ledger names is written into a copy, whatever it is called.", {
        "kernel.write:check_suffix": none,
        "kernel.write:INDEX_NAME": "", "kernel.write:INDEX_DIRECTORY": ""}),
    "compared_copies": ("The files of a copy are not compared with the ledger.", {
        "fleet.copies:_has_foreign": false}),
    "current_bytes": ("Whatever stands in a copy counts as what the ledger says.", {
        "*store.ledger:is_current": true}),
    "home_shares": ("The owner of any home has the places of the owner of all.", {
        "server.tokens:Principal.share": property(lambda self: self.name)}),
    "home_keys": ("All homes have one key.", {"*fleet.homes:key_of": lambda fleet, _: fleet}),
    "served_homes": ("Whoever asks is served by the node, and by no home.", {
        "fleet.node:FleetNode.of": lambda self, _: self}),
    "fleet_keys": ("A node may have any key.", {"fleet.schema:_require_key": none}),
    "seeing_roles": ("Nobody asks what the role of a node may see.", {"fleet.schema:_check_role": none}),
    "known_tables": ("A node serves from tables of any version.", {"fleet.schema:_check_version": none}),
    "verified_servers": ("Every server counts as one of this machine.", {"fleet.address:_is_here": true}),
    "private_urls": ("A file with a password may be read by others.", {
        "fleet.address:stat.S_IRGRP": 0, "fleet.address:stat.S_IROTH": 0}),
})
# fmt: on


@around("fleet.postgres:HomeLedger.__init__")
def epochs(real, self, pool, home, _epoch):
    """A transaction holds whoever has the lease by now."""
    real(self, pool, home, None)


@control()
def canonical_rows(off):
    """The paths of a ledger are taken as they stand there, and handles lead anywhere."""
    off.also("layer_one")
    off.put("fleet.copied:canonicalise", lambda text, _: forged(*text.split("/", 1)))


@control()
def counted_erasures(off):
    """Nobody asks whether something was erased since a copy was made."""
    off.also("compared_copies")
    off.put(
        "fleet.copied:_STAND",
        "SELECT number, 0, epoch FROM home WHERE home = current_setting('muniment.home')",
    )
    off.put("fleet.copied:ERASED", "nothing is")


@control()
def spoiled_copies(off):
    """A copy is kept whatever was done to it."""
    off.also("compared_copies")
    off.put("fleet.copies:WorkingCopy.spoil", none)


@control()
def unmarked_copies(off):
    """A copy that is being changed is marked whole."""
    off.also("compared_copies")
    off.put("fleet.copies:WorkingCopy._unmark", none)


@control()
def claimed_copies(off):
    """What stands at a name in a copy is replaced unseen."""
    off.also("compared_copies", "claimed_file")


@around("fleet.address:_parts")
def argument_passwords(real, url):
    """Nobody asks whether a password is in an argument."""
    return {name: value for name, value in real(url).items() if name != "password"}


@instead("fleet.node:FleetNode.asked")
async def asked_in_threads(_node, ask):
    """The loop waits for the database itself."""
    return ask()
