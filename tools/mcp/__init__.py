"""Tools of MCP servers: rows say which there are, a *keeper* in a process of its own talks to them, and the gate has
each call run. Only the keeper's process imports the package ``mcp``."""
