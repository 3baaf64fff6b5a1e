"""The memory as a server of the Model Context Protocol; needs `muniment[mcp]`.

    answers   what each tool answers, made of the results of operations
    actions   what tools, resources and prompts read and change at a place of the library
    tools     the arguments of each tool, and `Backend`, which carries calls out
    memory    the backend of a program of its own (`muniment mcp`); `server.mcp` has that of a daemon
    server    tools, resources and prompts on the official SDK, for any backend

Nothing here opens a socket or a pipe: `cli.mcp` has the pipe, `server.mcp` the HTTP.
"""
