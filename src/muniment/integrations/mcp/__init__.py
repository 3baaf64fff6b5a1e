"""The memory as a server of the Model Context Protocol; needs `muniment[mcp]`.

    memory    what it offers, as closed models of what is asked and answered, and what that comes to over a
              place; for a program of its own (`muniment mcp`) it is carried out here
    server    the same on the official SDK, for whatever carries it out

Nothing here opens a socket or a pipe: `cli.mcp` has the pipe, `server.mcp` the HTTP.
"""
