"""Every address."""

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.views import defaults
from django.views.generic import RedirectView
from drf_spectacular.views import SpectacularJSONAPIView, SpectacularSwaggerView

from conversations import health
from nanohost.console.metrics import metrics
from nanohost.lib import errors
from nanohost.lib.rest import plain_problem

urlpatterns = [
    path("", RedirectView.as_view(url="/admin/")),
    path("admin/queue/", include("nanohost.console.queue_page")),
    path("admin/", admin.site.urls),
    path("health/live", health.live),
    path("health/ready", health.ready),
    path("metrics", metrics),
    path("api/schema", SpectacularJSONAPIView.as_view(), name="schema"),
    path("api/docs", SpectacularSwaggerView.as_view(url_name="schema")),
    path("api/v1/", include("conversations.api.urls")),
    path("api/v1/", include("scheduler.api.urls")),
]


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """400 from outside DRF, such as a Host that is not ours."""
    if request.path.startswith("/api/"):
        return plain_problem(
            request, errors.InvalidRequest("The request's headers are not acceptable, its Host above all.")
        )
    return defaults.bad_request(request, exception)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """404 for an address that is none."""
    if request.path.startswith("/api/"):
        return plain_problem(request, errors.NotFound("There is no such address."))
    return defaults.page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    """500 from outside DRF."""
    if request.path.startswith("/api/"):
        return plain_problem(request, errors.Problem())
    return defaults.server_error(request)


handler400 = bad_request
handler404 = not_found
handler500 = server_error
