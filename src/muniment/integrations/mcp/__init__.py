"""The memory as a server of the Model Context Protocol; needs `muniment[mcp]`.

answers   the responses of each tool, created from results of operations
actions   the reads and changes of tools, resources and prompts
tools     the arguments of each tool, and `Backend`, which executes calls
server    tools, resources and prompts on the official SDK, for any backend
memory    the backend of a separate process (`muniment mcp`)
stdio     that process: messages over standard input and output
http      `/mcp` of the daemon: its backend and its sessions; `server.routes` loads it by name
pipe      standard input and output for a host, forwarded to `/mcp` of a daemon; needs no SDK
wire      lines of JSON-RPC, for `stdio` and `pipe`
"""
