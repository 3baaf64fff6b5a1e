"""The memory as a server of the Model Context Protocol; needs `muniment[mcp]`.

answers   what each tool answers, made of the results of operations
actions   what tools, resources and prompts read and change at a place of the library
tools     the arguments of each tool, and `Backend`, which carries calls out
server    tools, resources and prompts on the official SDK, for any backend
memory    the backend of a program of its own (`muniment mcp`)
stdio     that program: messages over standard input and output
http      `/mcp` of the daemon: its backend and its sessions; `server.routes` loads it by name
pipe      standard input and output for a host, `/mcp` of a daemon behind it; needs no SDK
wire      lines of JSON-RPC, for `stdio` and `pipe`
"""
