"""Webhooks and what they are sent, in the admin.

A secret is shown once, by the answer to the form that made it: in no address, session, cookie or log.
"""

import json
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.views.decorators.http import require_POST
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from conversations import announced
from conversations.deliveries import emails, endpoints, outbox, signatures, webhooks
from conversations.engine import announcements, outgoing
from conversations.models import Delivery, DeliveryStatus, WebhookEndpoint
from nanohost.lib.admin import (
    CANCEL,
    REQUEUE,
    SHOWN_ONCE,
    TOGGLE,
    GrowingAdmin,
    ModelAdmin,
    excerpt,
    link_to,
    link_to_list,
    shown,
    table,
)
from nanohost.lib.redaction import redact
from nanohost.lib.text import storable


class WebhookForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's own is not subscriptable
    """Where events are sent to, and which."""

    kinds = forms.MultipleChoiceField(
        label="Events",
        choices=[(kind, kind) for kind in announced.KINDS],
        widget=UnfoldAdminCheckboxSelectMultipleWidget(),
        help_text=" ".join(f"{kind}: {words}" for kind, words in announced.KINDS.items()),
    )

    class Meta:
        model = WebhookEndpoint
        fields = endpoints.FIELDS

    def clean(self) -> Any:
        """A secret could be made, if this is a new one."""
        if not self.instance.pk:
            try:
                signatures.secret_of(signatures.new_seed())
            except signatures.NoWebhookKey as error:
                raise ValidationError(f"{error}. Set WEBHOOK_KEY for web nodes and workers.") from None
        return super().clean()


@admin.register(WebhookEndpoint)
class WebhookEndpointAdmin(ModelAdmin):
    """Who is told of events. Rows stay when a webhook is switched off, so that what it was sent can still be traced."""

    nothing_yet = (
        "A webhook notifies another program of turns, approvals or budgets. Add one with its address and events."
    )
    form = WebhookForm
    list_per_page = 50
    list_display = ["name", "where", "is_active", "events", "disabled_because", "failures"]
    list_filter = ["is_active"]
    search_fields_of_editors = ["name"]
    readonly_fields = ["where", "events", "disabled_because", "sent", "rotated_at", "made_by", "created_at"]
    actions = ["try_out", "switch_on", "switch_off", "rotate"]

    @admin.display(description="address")
    def where(self, endpoint: WebhookEndpoint) -> str:
        """Without the secrets that some addresses hold."""
        return excerpt(redact(endpoint.url), 60)

    @admin.display(description="events")
    def events(self, endpoint: WebhookEndpoint) -> str:
        return ", ".join(endpoint.kinds)

    @admin.display(description="failed")
    def failures(self, endpoint: WebhookEndpoint) -> str:
        told = {"endpoint__id": endpoint.pk, "status": DeliveryStatus.FAILED}
        return link_to_list("conversations_delivery", "View failures", **told)

    @admin.display(description="deliveries")
    def sent(self, endpoint: WebhookEndpoint) -> str:
        return link_to_list("conversations_delivery", "View deliveries", endpoint__id=endpoint.pk)

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def get_fields(self, request: HttpRequest, obj: WebhookEndpoint | None = None) -> Any:
        if obj is None:
            return ["name", "url", "kinds"]
        if self.has_change_permission(request, obj):
            return [*endpoints.FIELDS, "disabled_because", "sent", "rotated_at", "made_by", "created_at"]
        return ["name", "is_active", *self.readonly_fields]

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        said = {name: form.cleaned_data[name] for name in endpoints.FIELDS if name in form.cleaned_data}
        if change:
            endpoints.change(obj, **said)
            return
        made, obj.secret = endpoints.make(made_by=request.user.get_username(), **said)
        obj.pk = made.pk

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: str | None = None) -> HttpResponse:
        """The secret itself, which no redirection could carry without leaving it somewhere."""
        return self._show_secret(request, obj, obj.secret)

    def _show_secret(self, request: HttpRequest, endpoint: WebhookEndpoint, secret: str) -> HttpResponse:
        told = {"title": f"Webhook {endpoint}", "opts": self.opts, "endpoint": endpoint, SHOWN_ONCE: secret}
        context = self.admin_site.each_context(request) | told
        return TemplateResponse(request, "admin/conversations/webhook_secret.html", context)

    @admin.action(description="Send a test event to the selected webhooks", permissions=[TOGGLE])
    def try_out(self, request: HttpRequest, chosen: QuerySet[WebhookEndpoint]) -> None:
        for endpoint in chosen:
            row = announcements.try_out(endpoint)
            link = link_to("conversations_delivery", row.pk, f"what has become of the test of {endpoint}")
            messages.success(request, format_html("See {}.", link))

    @admin.action(description="Switch the selected webhooks on", permissions=[TOGGLE])
    def switch_on(self, request: HttpRequest, chosen: QuerySet[WebhookEndpoint]) -> None:
        self._switch(request, chosen, is_active=True)

    @admin.action(description="Switch the selected webhooks off", permissions=[TOGGLE])
    def switch_off(self, request: HttpRequest, chosen: QuerySet[WebhookEndpoint]) -> None:
        self._switch(request, chosen, is_active=False)

    def _switch(self, request: HttpRequest, chosen: QuerySet[WebhookEndpoint], *, is_active: bool) -> None:
        for endpoint in chosen:
            endpoints.change(endpoint, is_active=is_active)
        messages.success(request, f"{len(chosen)} webhooks are switched {'on' if is_active else 'off'}.")

    @admin.action(description="Make another secret for the selected webhook", permissions=["change"])
    def rotate(self, request: HttpRequest, chosen: QuerySet[WebhookEndpoint]) -> HttpResponse | None:
        try:
            (endpoint,) = chosen
        except ValueError:
            messages.warning(request, "Nothing was done: choose one webhook, whose new secret is then shown.")
            return None
        try:
            return self._show_secret(request, endpoint, endpoints.rotate(endpoint))
        except signatures.NoWebhookKey as error:
            messages.error(request, f"Nothing was done. {error}.")
            return None


@admin.register(Delivery)
class DeliveryAdmin(GrowingAdmin):
    """What went out, or is to: each attempt, and what the receiver said."""

    nothing_yet = "What webhooks and people by e-mail are sent appears here, with each attempt."

    list_display = [
        "created_at",
        "kind",
        "endpoint",
        "account",
        "recipient",
        "status",
        "attempts",
        "last_status",
        "what_failed",
        "run_after",
    ]
    list_filter = ["created_at", "status", "endpoint", "account"]
    list_prefetch_related = ["endpoint", "account"]
    search_fields = ["id"]
    search_help_text = "An id of a delivery, or its beginning: the part after msg_ in webhook-id or Message-ID."
    actions = ["send_again", "cancel"]
    readonly_fields = ["message_id", "its_endpoint", "its_chat", "said_in", "payload", "each_try", "again", "new_text"]
    fieldsets = [
        (
            None,
            {"fields": ["message_id", "its_endpoint", "recipient", "kind", "status", "again", "payload", "new_text"]},
        ),
        ("In a chat", {"fields": ["account", "its_chat", "number", "said_in", "in_reply_to", "external_id"]}),
        (
            "Attempts",
            {"fields": ["attempts", "each_try", "last_status", "error", "run_after", "deliver_after", "expires_at"]},
        ),
        ("How it is run", {"fields": ["channel", "worker", "fence", "lease_until", "notified_at"]}),
        ("Time", {"fields": ["created_at", "ended_at"]}),
    ]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        delivery = super().get_object(request, object_id, from_field)
        if delivery:
            delivery.may_send = self.has_requeue_permission(request)
        return delivery

    @admin.display(description="latest error")
    def what_failed(self, delivery: Delivery) -> str:
        return excerpt(delivery.error, 60)

    @admin.display(description="message id")
    def message_id(self, delivery: Delivery) -> str:
        return outbox.id_of(delivery)

    @admin.display(description="webhook", empty_value="–")
    def its_endpoint(self, delivery: Delivery) -> str | None:
        endpoint = delivery.endpoint
        return link_to("conversations_webhookendpoint", endpoint.pk, str(endpoint)) if endpoint else None

    @admin.display(description="chat", empty_value="–")
    def its_chat(self, delivery: Delivery) -> str | None:
        chat = delivery.chat
        return link_to("conversations_chat", chat.pk, str(chat)) if chat else None

    @admin.display(description="conversation", empty_value="–")
    def said_in(self, delivery: Delivery) -> str | None:
        where = delivery.conversation_id
        return link_to("conversations_conversation", where, str(where)) if where else None

    @admin.display(description="what it says")
    def payload(self, delivery: Delivery) -> str:
        if delivery.channel == Delivery.Channel.CHAT:
            said = "\n".join(str(value) for value in delivery.data.values())
            return format_html('<pre class="code" tabindex="0">{}</pre>', shown(said))
        if delivery.channel == Delivery.Channel.EMAIL:
            return format_html('<pre class="code" tabindex="0">{}</pre>', shown(str(emails.message_of(delivery).body)))
        said = json.dumps(json.loads(webhooks.body_of(delivery)), indent=2, ensure_ascii=False)
        return format_html('<pre class="code" tabindex="0">{}</pre>', shown(said))

    @admin.display(description="the latest attempts")
    def each_try(self, delivery: Delivery) -> str:
        cells = (
            (each["at"], each["status"] or "–", shown(each["error"] or "delivered"), f"{each['ms']} ms")
            for each in reversed(delivery.tries)
        )
        return table(("at", "status", "what came of it", "took"), cells) or "none yet"

    @admin.display(description="once more", empty_value="–")
    def again(self, delivery: Any) -> str | None:
        """A button; it is in the page's own form."""
        if not delivery.may_send or delivery.status == DeliveryStatus.RUNNING:
            return None
        address = reverse("admin:conversations_delivery_again", args=[delivery.pk])
        return format_html('<button type="submit" class="button" formaction="{}">Send again</button>', address)

    @admin.display(description="say this instead", empty_value="–")
    def new_text(self, delivery: Any) -> str | None:
        """A text and a button, of a message to a chat that nobody has begun to send."""
        said = delivery.data.get("text") if delivery.chat_id else None
        if not delivery.may_send or not said or delivery.begun_at or delivery.status != DeliveryStatus.QUEUED:
            return None
        address = reverse("admin:conversations_delivery_text", args=[delivery.pk])
        return format_html(
            '<textarea name="new_text" aria-label="New text" rows="6" cols="60">{}</textarea>'
            '<p><button type="submit" class="button" formaction="{}">Change the text</button></p>',
            said,
            address,
        )

    def get_urls(self) -> list[Any]:
        again, text = (self.admin_site.admin_view(each) for each in (self.again_view, self.text_view))
        return [
            path("<uuid:pk>/again/", again, name="conversations_delivery_again"),
            path("<uuid:pk>/text/", text, name="conversations_delivery_text"),
            *super().get_urls(),
        ]

    @method_decorator(require_POST)
    def text_view(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        """Have it say something else, and back to its page."""
        if not self.has_requeue_permission(request):
            raise PermissionDenied
        delivery = get_object_or_404(Delivery.objects.select_related("chat__channel"), pk=pk)
        # A browser sends ends of lines as two characters.
        text = storable(request.POST.get("new_text", "").replace("\r\n", "\n"))
        try:
            if outgoing.change(delivery, text):
                messages.success(request, "The text is changed.")
            else:
                messages.error(request, "It was begun to be sent before, or it has no text; nothing is changed.")
        except ValueError as error:
            messages.error(request, str(error))
        return HttpResponseRedirect(reverse("admin:conversations_delivery_change", args=[pk]))

    @method_decorator(require_POST)
    def again_view(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        """Send it again, and back to its page."""
        if not self.has_requeue_permission(request):
            raise PermissionDenied
        self._send_again(request, [get_object_or_404(Delivery, pk=pk)])
        return HttpResponseRedirect(reverse("admin:conversations_delivery_change", args=[pk]))

    @admin.action(description="Send the selected deliveries again", permissions=[REQUEUE])
    def send_again(self, request: HttpRequest, chosen: QuerySet[Delivery]) -> None:
        self._send_again(request, list(chosen))

    @admin.action(description="Cancel the selected deliveries", permissions=[CANCEL])
    def cancel(self, request: HttpRequest, chosen: QuerySet[Delivery]) -> None:
        cancelled = sum(outgoing.cancel(delivery) for delivery in chosen)
        messages.success(request, f"{cancelled} of {len(chosen)} are cancelled; the others are on their way, or ended.")

    def _send_again(self, request: HttpRequest, chosen: list[Delivery]) -> None:
        sent = sum(announcements.send_again(delivery) for delivery in chosen)
        messages.success(request, f"{sent} of {len(chosen)} are sent again, by the id that they have.")
