"""The REST API of schedules. A view reads HTTP and makes one domain call."""

from typing import Any, ClassVar
from uuid import UUID

from django.db import transaction
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from agent import access
from nanohost.accounts.authentication import key_of
from nanohost.accounts.models import Scope
from nanohost.lib.api import NewestFirst, Nothing, Pages, checked, owner_of, problems
from nanohost.lib.errors import InvalidRequest, NotFound
from scheduler import series
from scheduler.api import serializers as shapes
from scheduler.errors import BadSchedule
from scheduler.models import Schedule, ScheduleRun
from scheduler.times import zone_of


class LastSlotFirst(Pages):
    ordering = "-slot"


def _owned(request: Request, schedule_id: UUID) -> Schedule:
    """The caller's schedule; somebody else's is as unknown as none, and so is one that was cancelled."""
    mine = Schedule.objects.kept().filter(pk=schedule_id, owner=owner_of(request))
    if found := access.admitted(mine, key_of(request)).select_related("agent").first():
        return found
    raise NotFound("There is no schedule with that id, or it is not yours.")


def _shown(schedule: Schedule) -> Response:
    return Response(shapes.ScheduleView(schedule).data)


def _previewed(schedule: Schedule) -> Response:
    zone = zone_of(schedule.zone)
    times = [
        {"at": each.at, "local": each.at.astimezone(zone).isoformat(), "note": each.note}
        for each in series.upcoming(schedule)
    ]
    return Response(shapes.PreviewView({"zone": schedule.zone, "times": times}).data)


class ScheduleList(ListAPIView[Schedule]):
    """Schedules of the caller."""

    scopes: ClassVar = {"GET": (Scope.READ, Scope.SCHEDULES), "POST": (Scope.SCHEDULES,)}

    serializer_class = shapes.ScheduleView
    pagination_class = NewestFirst

    def get_queryset(self) -> Any:
        mine = Schedule.objects.kept().select_related("agent").filter(owner=owner_of(self.request))
        if (conversation := self.request.query_params.get("conversationId")) is not None:
            try:
                mine = mine.filter(conversation_id=UUID(conversation))
            except ValueError:
                raise InvalidRequest("conversationId is the id of a conversation.") from None
        return access.admitted(mine, key_of(self.request))

    @extend_schema(
        operation_id="listSchedules",
        parameters=[OpenApiParameter("conversationId", UUID, description="Those that speak in this conversation.")],
        responses={200: shapes.ScheduleView(many=True), **problems()},
    )
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().get(request, *args, **kwargs)

    @extend_schema(
        operation_id="createSchedule",
        request=shapes.NewSchedule,
        responses={201: shapes.ScheduleView, **problems()},
    )
    def post(self, request: Request) -> Response:
        """Have an agent spoken to by the clock."""
        wanted, key = checked(shapes.NewSchedule, request), key_of(request)
        if wanted.get("agent") and access.agent_of_key(key, wanted["agent"]) is None:
            raise BadSchedule(access.UNKNOWN.format(wanted["agent"]))
        with transaction.atomic():
            schedule = series.create(owner_id=owner_of(request), api_key_id=key.pk, **wanted)
            if not access.admits(key, schedule.agent):
                raise BadSchedule(access.UNKNOWN.format(schedule.agent.name))
        answer = _shown(schedule)
        answer.status_code, answer["Location"] = 201, f"/api/v1/schedules/{schedule.pk}"
        return answer


class ScheduleDetail(APIView):
    """One schedule."""

    scopes: ClassVar = {"GET": (Scope.READ, Scope.SCHEDULES), "PATCH": (Scope.SCHEDULES,), "DELETE": (Scope.SCHEDULES,)}

    @extend_schema(operation_id="getSchedule", responses={200: shapes.ScheduleView, **problems(404)})
    def get(self, request: Request, schedule_id: UUID) -> Response:
        return _shown(_owned(request, schedule_id))

    @extend_schema(
        operation_id="changeSchedule",
        request=shapes.ScheduleChanges,
        responses={200: shapes.ScheduleView, **problems(404)},
    )
    def patch(self, request: Request, schedule_id: UUID) -> Response:
        """Change what is to come; what has fired stays as it is."""
        schedule = _owned(request, schedule_id)
        return _shown(series.update(schedule, **checked(shapes.ScheduleChanges, request)))

    @extend_schema(operation_id="cancelSchedule", responses={204: None, **problems(404)})
    def delete(self, request: Request, schedule_id: UUID) -> Response:
        """Cancel it for good. The turns that it made stay, and those that are open go on."""
        series.cancel(_owned(request, schedule_id))
        return Response(status=204)


class Preview(APIView):
    """Times that are not kept."""

    scopes: ClassVar = {"POST": (Scope.READ, Scope.SCHEDULES)}

    @extend_schema(
        operation_id="previewTimes", request=shapes.TimesIn, responses={200: shapes.PreviewView, **problems()}
    )
    def post(self, request: Request) -> Response:
        """When a schedule with these times would run next, with notes on changes of the clock. Nothing is stored."""
        return _previewed(series.draft(**checked(shapes.TimesIn, request)))


class SchedulePreview(APIView):
    """Times to come."""

    scopes: ClassVar = {"GET": (Scope.READ, Scope.SCHEDULES)}

    @extend_schema(operation_id="previewSchedule", responses={200: shapes.PreviewView, **problems(404)})
    def get(self, request: Request, schedule_id: UUID) -> Response:
        """When it runs next, if it is left alone; of one that is paused, if it were resumed."""
        return _previewed(_owned(request, schedule_id))


class SchedulePause(APIView):
    """Pausing a schedule."""

    scopes: ClassVar = {"POST": (Scope.SCHEDULES,)}

    @extend_schema(
        operation_id="pauseSchedule", request=Nothing, responses={200: shapes.ScheduleView, **problems(404, 409)}
    )
    def post(self, request: Request, schedule_id: UUID) -> Response:
        """Have it run no more until it is resumed."""
        schedule = _owned(request, schedule_id)
        checked(Nothing, request)
        return _shown(series.pause(schedule))


class ScheduleResume(APIView):
    """Resuming a schedule."""

    scopes: ClassVar = {"POST": (Scope.SCHEDULES,)}

    @extend_schema(
        operation_id="resumeSchedule", request=Nothing, responses={200: shapes.ScheduleView, **problems(404, 409)}
    )
    def post(self, request: Request, schedule_id: UUID) -> Response:
        """Have it run again, from its next time on; times that passed meanwhile are not made up for."""
        schedule = _owned(request, schedule_id)
        checked(Nothing, request)
        return _shown(series.resume(schedule))


class ScheduleRunNow(APIView):
    """Running a schedule by hand."""

    scopes: ClassVar = {"POST": (Scope.SCHEDULES,)}

    @extend_schema(operation_id="runSchedule", request=Nothing, responses={202: shapes.RunView, **problems(404)})
    def post(self, request: Request, schedule_id: UUID) -> Response:
        """Run it once, now; its times stay as they are."""
        schedule = _owned(request, schedule_id)
        checked(Nothing, request)
        return Response(shapes.RunView(series.run_now(schedule)).data, status=202)


class RunList(ListAPIView[ScheduleRun]):
    """The ledger of a schedule."""

    scopes: ClassVar = {"GET": (Scope.READ, Scope.SCHEDULES)}

    serializer_class = shapes.RunView
    pagination_class = LastSlotFirst

    def get_queryset(self) -> Any:
        if getattr(self, "swagger_fake_view", False):
            return ScheduleRun.objects.none()
        return ScheduleRun.objects.filter(schedule=_owned(self.request, self.kwargs["schedule_id"]))

    @extend_schema(operation_id="listRuns", responses={200: shapes.RunView(many=True), **problems(404)})
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """What became of each time that has come, the latest first."""
        return super().get(request, *args, **kwargs)
