"""Is it alive, is it ready: for load balancers and people."""

from collections.abc import Callable

from celery import current_app
from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from conversations.models import TOOLS, TURNS, Worker


@csrf_exempt
@require_safe
def live(request: HttpRequest) -> JsonResponse:
    """The process answers."""
    return JsonResponse({"status": "ok"})


@csrf_exempt
@require_safe
def ready(request: HttpRequest) -> JsonResponse:
    """The database, the doorbell, a worker of turns and one of tools answer; 503 and which does not, otherwise."""
    database = _passes(_database)
    checks = {
        "database": database,
        "doorbell": _passes(_doorbell),
        # Their rows are in the database: without it, whoever asks is not kept waiting for it twice more.
        "worker": database and _passes(_worker),
        "toolbox": database and _passes(_toolbox),
    }
    is_ready = all(checks.values())
    body = {
        "status": "ok" if is_ready else "unavailable",
        "checks": {name: "ok" if passed else "unavailable" for name, passed in checks.items()},
    }
    return JsonResponse(body, status=200 if is_ready else 503)


def _passes(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except Exception:
        return False


def _database() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return True


def _doorbell() -> bool:
    with current_app.connection_for_write() as broker:
        broker.ensure_connection(max_retries=0)
    return True


def _worker() -> bool:
    return Worker.objects.alive().working_on(TURNS).exists()


def _toolbox() -> bool:
    return Worker.objects.alive().working_on(TOOLS).exists()
