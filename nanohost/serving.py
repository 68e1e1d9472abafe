"""Serving HTTP: the listening socket, uvicorn, and an end that does not take long."""

import atexit
import logging
import os
import resource
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import Any, NoReturn

import uvicorn
from django.conf import settings
from django.core.management.base import CommandError

from nanohost.lib.http import BoundedHeads


def obey_signals() -> None:
    """Leave at SIGINT and SIGTERM, also before the server takes them over."""
    for asked_to_stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asked_to_stop, leave)


def leave(*_: Any) -> NoReturn:
    """Asked to stop before the server took the signals over, or after: uvicorn raises them again when it has ended."""
    sys.exit(0)


def bind(host: str, port: int) -> socket.socket:
    """The listening socket, taken before anything else is made."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio switches Nagle's delay off only for sockets that say they are TCP's: 40 ms an answer otherwise.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
        return listener
    except (OSError, OverflowError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "there is no such address"
        raise CommandError(f"Cannot listen on HOST={host} PORT={port}: {reason}.") from None


def address_of(listener: socket.socket) -> str:
    """Where the host is reached from this machine."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 -- compared with, not bound to
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """Lets those who wait go as soon as it is asked to stop; uvicorn would wait for them. For ``WEB_DRAIN_SECONDS`` it
    then says that it is not ready, and still serves, so that a load balancer turns away before the door is closed."""

    _drains = False

    def handle_exit(self, sig: int, frame: Any) -> None:
        from nanohost.asgi import gateway

        if self.config.loaded:
            gateway.drain()
        if self._drains or not self.started or not settings.WEB_DRAIN_SECONDS:
            return super().handle_exit(sig, frame)
        self._drains = True
        closing = threading.Timer(settings.WEB_DRAIN_SECONDS, super().handle_exit, args=(sig, frame))
        closing.daemon = True
        return closing.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        leave_soon()  # the loop ends when its tasks have, and one may still wait for a database that hangs


def serve(listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM; the lifespan starts and stops the workers."""
    config = uvicorn.Config(
        "nanohost.asgi:application",
        http=BoundedHeads,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        # uvicorn would believe whatever a proxy of this machine passes on; we go by TRUSTED_PROXIES and HTTPS.
        proxy_headers=False,
        timeout_graceful_shutdown=2,
        ws="none",
        # asyncio accepts as often as this in a row, and logs each time that it has no file left for one.
        backlog=128,
    )
    allow_many_connections()
    server = _Server(config)
    with suppress(SystemExit):  # uvicorn raises the signal again that it has obeyed
        server.run(sockets=[listener])
    if not server.started:
        raise CommandError("nanohost could not start; the reason is above.")


def allow_many_connections() -> None:
    """Raise the bound of open files as far as the system lets us: each waiting client is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def leave_soon() -> None:
    """See to the end of the process: once its threads have ended, or in a second, since one may still wait for a
    database that hangs. The interpreter is not taken apart, which would take half a second and serve nobody."""
    ending = threading.Timer(1.0, os._exit, args=(0,))
    ending.daemon = True
    ending.start()
    atexit.register(_leave_now)


def _leave_now() -> None:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
