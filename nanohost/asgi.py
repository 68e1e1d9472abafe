"""The ASGI application: the lifespan, and the gateway around Django."""

import asyncio
import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "nanohost.settings")

import django

django.setup(set_prefix=False)

from django.conf import settings  # noqa: E402 -- Django first

from conversations.web.gateway import Receive, ResponseGateway, Scope, Send  # noqa: E402 -- Django first
from nanohost.lib import garbage  # noqa: E402 -- Django first
from nanohost.lib.debugging import Handler  # noqa: E402 -- Django first
from nanohost.lib.one_core import keep_to_one_core  # noqa: E402 -- Django first

gateway = ResponseGateway(Handler())


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """HTTP goes to the gateway; the lifespan starts and stops the embedded workers, where there are any."""
    if scope["type"] == "http":
        await gateway(scope, receive, send)
    elif scope["type"] == "lifespan":
        await _live(receive, send)
    elif scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})


def _export() -> None:
    """Begin to export telemetry; the figures of the host as well, which are the same at each web node."""
    from nanohost.console.metrics import HostCollector
    from nanohost.lib import telemetry
    from nanohost.lib.database import borrowed_connection

    def figures() -> Any:
        with borrowed_connection():
            return list(HostCollector().collect())

    telemetry.start(figures=figures)


async def _live(receive: Receive, send: Send) -> None:
    await receive()
    if settings.TELEMETRY:
        _export()
    embedded: Any = None
    if settings.EMBEDDED:
        from nanohost.embedded import Embedded

        embedded = Embedded(asyncio.get_running_loop())
        await asyncio.to_thread(embedded.start)
    garbage.leave_out_what_there_is()
    if settings.ONE_CORE:
        keep_to_one_core()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await gateway.close()
    if embedded:
        await asyncio.to_thread(embedded.stop)
    if settings.TELEMETRY:
        from nanohost.lib import telemetry

        await asyncio.to_thread(telemetry.stop)
    await send({"type": "lifespan.shutdown.complete"})
