"""The endpoint of channels: ``POST /channels/<name>/webhook``, signed by the platform; with GET some make sure of
it."""

from http import HTTPStatus

from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods

from conversations.channels import accounts
from conversations.channels.base import Permanent, Request, SecretNotSet
from conversations.channels.registry import NoSuchPlatform, platform_of
from conversations.deliveries.signatures import NoWebhookKey
from conversations.engine.channels import from_channels
from nanohost.lib.errors import NotFound, Problem, Unavailable
from nanohost.lib.ids import request_id
from nanohost.lib.rest import PROBLEM_TYPE, as_problem, problem


@csrf_exempt
@require_http_methods(["POST", "GET"])
def webhook(request: HttpRequest, name: str) -> HttpResponse:
    """Take in what a platform tells, and say so at once; whoever answers it does so by the outbox."""
    identity = request_id(request.headers.get("X-Request-ID", ""))
    try:
        if request.method == "GET":
            return _confirmed(name, request)
        channel = from_channels.active(name)
        headers = {key.lower(): value for key, value in request.headers.items()}
        taken = from_channels.take_request(channel, Request(headers=headers, body=request.body), request_id=identity)
    except (NoWebhookKey, NoSuchPlatform, SecretNotSet, Permanent) as error:
        return _refused(Unavailable(f"{error}."), identity)
    except Exception as error:
        return _refused(error if isinstance(error, Problem) else as_problem(error), identity)
    if not isinstance(taken, from_channels.Taken):
        return JsonResponse(dict(taken))
    # A form is a button of Slack's, which takes nothing but 200 for a yes.
    is_form = request.content_type == "application/x-www-form-urlencoded"
    platform = platform_of(channel.kind)
    status = 200 if is_form else platform.taken
    told = {"taken": taken.taken, "known": taken.known, "refused": taken.refused}
    return JsonResponse(told if status == HTTPStatus.ACCEPTED or is_form else dict(platform.taken_body), status=status)


def _confirmed(name: str, request: HttpRequest) -> HttpResponse:
    """What a platform is told that makes sure of the address; of others nobody learns whether they are there."""
    try:
        text = accounts.platform(from_channels.active(name)).confirm(request.GET.dict())
    except NotFound:
        text = None
    return HttpResponseNotAllowed(["POST"]) if text is None else HttpResponse(text, content_type="text/plain")


def _refused(error: Problem, identity: str) -> JsonResponse:
    told = JsonResponse(problem(error, identity), status=error.status, headers=error.headers)
    told["Content-Type"] = PROBLEM_TYPE
    return told


urlpatterns = [path("<str:name>/webhook", webhook, name="channel_webhook")]
