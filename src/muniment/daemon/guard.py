"""What every request passes before any route sees it.

G1 Exactly one Host header, one of the daemon's names: a page that had its own name rebound to this address has
   another (421).
G2 No Origin but the daemon's own; `null` is foreign (403).
G3 A path is taken as it was sent: no encoded slash, no empty or dotted segment leads anywhere (404). The long
   forms `/workspaces/{workspace}/…` and `/session/{id}/events` become the short ones here, and nowhere else.
G4 A bearer token, exactly one; on the Unix socket instead the peer's user, who has to be this one, and never the
   overflow user, whom the kernel names where it knows none (401).
G5 At most `MAX_REQUESTS` at once, besides those that follow events (503).
G6 Every answer has the headers of `protocol.HEADERS`.
"""
