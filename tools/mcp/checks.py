"""Having the tools of a server taken in because somebody pressed a button: a worker of tools does it, since web nodes
have neither the secrets of servers nor a place to run them in."""

import logging

from celery import current_app
from django.db import close_old_connections, connections, transaction
from kombu.exceptions import OperationalError

from nanohost.lib.clock import Now
from tools.mcp import catalogue
from tools.mcp.errors import NotStarted
from tools.mcp.models import McpServer

logger = logging.getLogger(__name__)

TASK = "tools.tasks.check_mcp_server"


def ask_for(server: McpServer) -> None:
    """Have a worker check a server, once the current transaction has committed. Until one has, the row says since when
    somebody waits; who has waited in vain asks again."""
    McpServer.objects.filter(pk=server.pk).update(check_asked_at=Now())
    transaction.on_commit(lambda: _publish(server.pk))


def _publish(server_id: int) -> None:
    try:
        current_app.send_task(TASK, args=[server_id])
    except OperationalError as error:
        logger.warning("no worker was asked to check an MCP server: the broker does not answer (%s)", error)


def check(server_id: int) -> None:
    """Check a server if somebody still waits for that. What goes wrong is kept with it."""
    try:
        # Of two workers that are told of it, one does it.
        if not McpServer.objects.filter(pk=server_id, check_asked_at__isnull=False).update(check_asked_at=None):
            return
        server = McpServer.objects.get(pk=server_id)
        close_old_connections()
        try:
            catalogue.refresh(server)
        except NotStarted as why:
            logger.warning("the MCP server %s was checked: %s", server.name, why)
    except Exception:
        logger.exception("an MCP server could not be checked")
    finally:
        connections.close_all()
