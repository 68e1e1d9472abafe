"""The worker processes, in the admin."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from conversations.engine import intake
from conversations.models import Worker
from conversations.statuses import TurnStatus
from nanohost.lib.admin import ReadOnlyAdmin, link_to_list


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    """The worker processes: which are online, and how much they hold."""

    nothing_yet = "Each running worker process has a row here. Start one: manage.py serve, or a worker container."
    list_display = ["name", "is_alive", "queues", "heartbeat_at", "holds", "turns_most", "pool", "version"]
    list_display += ["started_at", "ended_at", "sandbox"]
    search_fields = ["name"]
    more_lookups = ["queues__contains"]
    fields = ["name", "is_alive", "queues", "version", "provider", "providers", "sandbox", "turns", "holds"]
    fields += ["turns_most", "pool", "started_at", "heartbeat_at", "ended_at"]
    readonly_fields = ["is_alive", "turns", "holds", "pool"]

    def get_queryset(self, request: HttpRequest) -> Any:
        rows: Any = super().get_queryset(request)
        return rows.with_life()

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """With what each of them holds, read once for all."""
        listed, left = super().get_changelist_instance(request), intake.left()
        for worker in listed.result_list:
            worker.held = left.held_by(worker.name, is_alive=worker.is_alive)
        return listed

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        worker = super().get_object(request, object_id, from_field)
        if worker:
            worker.held = intake.left().held_by(worker.name, is_alive=worker.is_alive)
        return worker

    @admin.display(description="online", boolean=True)
    def is_alive(self, worker: Any) -> bool:
        alive: bool = worker.is_alive
        return alive

    @admin.display(description="turns held")
    def holds(self, worker: Any) -> int:
        held: int = worker.held
        return held

    @admin.display(description="database connections in use")
    def pool(self, worker: Any) -> str:
        return worker.told_pool if worker.is_alive else "–"

    @admin.display(description="running turns")
    def turns(self, worker: Worker) -> str:
        return link_to_list("conversations_turn", "list", worker=worker.name, status=TurnStatus.RUNNING)
