"""Health: liveness and readiness, for load balancers and people."""

from collections.abc import Callable
from functools import partial
from typing import Any

from celery import current_app
from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from conversations import events
from conversations.kinds import KINDS, TOOLS, Kind
from conversations.models import Worker
from nanohost.lib.outages import refused_lately


@csrf_exempt
@require_safe
def live(request: HttpRequest) -> JsonResponse:
    """The process answers."""
    return JsonResponse({"status": "ok"})


@csrf_exempt
@require_safe
def ready(request: HttpRequest) -> JsonResponse:
    """The database, the doorbell, a worker of turns and one of tools answer, and this node hears of what happens; 503
    and which does not, otherwise. And which sandbox the tools run in."""
    database = _passes(_database)
    checks = {
        "database": database,
        "doorbell": _passes(_doorbell),
        # Their rows are in the database: without it, whoever asks is not kept waiting for it again for each.
        **{kind.check: database and _passes(partial(_works, kind)) for kind in KINDS if kind.check},
        "news": _passes(_news),
    }
    is_ready = all(checks.values())
    body = {
        "status": "ok" if is_ready else "unavailable",
        "checks": {name: "ok" if passed else "unavailable" for name, passed in checks.items()},
        "sandbox": Worker.objects.sandboxes() if checks[TOOLS.check] else [],
    }
    return JsonResponse(body, status=200 if is_ready else 503)


def _passes(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except Exception:
        return False


def _database() -> bool:
    """It takes writes, as far as can be told: a full disk is known to whoever was refused one."""
    database: Any = connection  # a backend of ours
    return not (database.refuses_writes() or refused_lately())


def _doorbell() -> bool:
    with current_app.connection_for_write() as broker:
        broker.ensure_connection(max_retries=0)
    return True


def _news() -> bool:
    return not events.transport().is_deaf()


def _works(kind: Kind) -> bool:
    return Worker.objects.alive().working_on(kind).exists()
