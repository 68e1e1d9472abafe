"""Is it alive, is it ready: for load balancers and people."""

from collections.abc import Callable

from celery import current_app
from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from conversations.models import Worker


@csrf_exempt
@require_safe
def live(request: HttpRequest) -> JsonResponse:
    """The process answers."""
    return JsonResponse({"status": "ok"})


@csrf_exempt
@require_safe
def ready(request: HttpRequest) -> JsonResponse:
    """The database, the doorbell and at least one worker answer; 503 and which one does not, otherwise."""
    checks = {"database": _passes(_database), "doorbell": _passes(_doorbell), "worker": _passes(_worker)}
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
    with current_app.connection_for_write(connect_timeout=2) as broker:
        broker.ensure_connection(max_retries=1, timeout=2)
    return True


def _worker() -> bool:
    return Worker.objects.alive().exists()
