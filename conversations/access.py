"""Who of the house may read whole conversations, whosever they are."""

# The permissions that it takes, together: a transcript shows all of this.
READERS = [
    *("conversations.view_conversation", "conversations.view_message", "conversations.view_turn"),
    *("tools.view_toolcall", "agent.view_agentversion", "memory.view_memoryversion"),
]
