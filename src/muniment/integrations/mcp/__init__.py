"""The memory as a server of the Model Context Protocol (MCP); needs `muniment[mcp]`.

responses   the responses of each tool, created from results of operations
actions     the reads and changes of tools, resources and prompts
tools       the arguments of each tool, and `Backend`, which executes calls
server      tools, resources and prompts on the official SDK, for any backend
memory      the backend of the process that `muniment mcp` starts
stdio       the messages of this process over standard input and output
http        `/mcp` of the daemon: its backend and its sessions; `server.routes` loads this module by name
pipe        forwards messages between standard input and output and `/mcp` of a daemon; needs no SDK
wire        lines of JSON-RPC, for `stdio` and `pipe`
"""
