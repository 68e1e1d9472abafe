"""Every address."""

from django.conf import settings
from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView
from drf_spectacular.views import SpectacularSwaggerSplitView

from conversations.openai_api.schema import OpenAISchema
from conversations.web import health
from nanohost.console import attention, first_run, problems
from nanohost.console.metrics import metrics
from nanohost.lib.openapi import SchemaView

urlpatterns = [
    # They are tried in this order, so that what programs ask stands before what people do.
    path("api/v1/", include("conversations.api.urls")),
    path("v1/", include("conversations.openai_api.urls")),
    path("", RedirectView.as_view(url="/admin/")),
    path("admin/attention/", include("nanohost.console.attention")),
    path("admin/queue/", include("nanohost.console.queue_page")),
    path("admin/usage/", include("nanohost.console.usage_page")),
    path("admin/retention/", include("nanohost.console.retention_page")),
    path("admin/turn-search/", include("nanohost.console.turn_search_page")),
    path("admin/find/", include("nanohost.console.finder")),
    path("admin/settings/", include("nanohost.console.settings_page")),
    path("admin/start/", include("nanohost.console.first_run")),
    path("admin/daily-summary/", include("nanohost.console.summary_page")),
    path("admin/colleague/", include("nanohost.console.colleagues")),
    path("admin/login/", first_run.sign_in),
    *([path("admin/single-sign-on/", include("nanohost.console.single_sign_on"))] if settings.OIDC_ISSUER else []),
    path("admin/", admin.site.urls),
    path("chat/", include("nanohost.chat.urls")),
    path("health/live", health.live),
    path("health/ready", health.ready),
    path("health/status", attention.status),
    path("metrics", metrics),
    path("api/schema", SchemaView.as_view(), name="schema"),
    path("api/docs", SpectacularSwaggerSplitView.as_view(url_name="schema", url_self="/api/docs")),
    path("api/v1/", include("nanohost.console.usage_api")),
    path("api/v1/", include("scheduler.api.urls")),
    path("api/schema/openai", OpenAISchema.as_view()),
    path("channels/", include("conversations.api.channels")),
]

handler400 = problems.bad_request
handler403 = problems.forbidden
handler404 = problems.not_found
handler500 = problems.server_error
