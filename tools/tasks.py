"""What the console has a worker of tools do, since it holds what MCP servers are given and web nodes do not."""

import threading

from celery import shared_task

from tools.mcp import checks


@shared_task
def check_mcp_server(server_id: int) -> None:
    """Have a server's tools taken in, by a thread: the one that hears tasks waits for nobody."""
    threading.Thread(target=checks.check, args=[server_id], name="mcp-check", daemon=True).start()
