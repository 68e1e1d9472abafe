"""The page *Settings*: people, keys, webhooks, what is kept, and all that has no door of its own."""

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path
from django.views.decorators.http import require_GET

from nanohost.console import navigation


@require_GET
def show(request: HttpRequest) -> HttpResponse:
    """The page."""
    parts = navigation.settings_of(request)
    if not parts:
        raise PermissionDenied
    context = admin.site.each_context(request) | {"title": navigation.SETTINGS, "parts": parts}
    return TemplateResponse(request, "console/settings.html", context)


urlpatterns = [path("", admin.site.admin_view(show), name="settings")]
