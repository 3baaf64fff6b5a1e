"""The memory as a server of the Model Context Protocol; needs `muniment[mcp]`.

    tools     what it offers, as values: closed models of what is asked and answered
    memory    carries it out over a place, for a program of its own (`muniment mcp`)
    server    the same on the official SDK, for whatever carries it out

Nothing here opens a socket or a pipe: `cli.mcp` has the pipe, `daemon.mcp` the HTTP.
"""
