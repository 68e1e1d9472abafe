"""Channels in the admin: accounts, who may write, chats, and where agents may write.

A secret, or a pairing code, is shown once, by the answer to what made it: in no address, session, cookie or log.
"""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.html import format_html
from unfold.widgets import UnfoldAdminSelectWidget

from conversations.channel_models import (
    Channel,
    Chat,
    Destination,
    Listener,
    ListenerStatus,
    Sender,
    SenderState,
)
from conversations.channels import accounts, registry
from conversations.deliveries import signatures
from conversations.engine import outgoing
from conversations.engine.channels import from_channels
from nanohost.accounts import audit
from nanohost.lib.admin import REVOKE, SHOWN_ONCE, TOGGLE, ModelAdmin, ReadOnlyAdmin, excerpt, link_to, link_to_list
from nanohost.lib.errors import Problem
from nanohost.lib.redaction import redact


class ChannelForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's own is not subscriptable
    """An account at a platform."""

    kind = forms.ChoiceField(widget=UnfoldAdminSelectWidget)

    class Meta:
        model = Channel
        fields = accounts.FIELDS

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if "kind" in self.fields:
            kinds = sorted((kind, each.title) for kind, each in registry.platforms().items())
            self.fields["kind"].choices = kinds  # type: ignore[attr-defined]  # of a field of choices
        if "settings" in self.fields:
            self.fields["settings"].help_text = _settings_of_each()

    def clean(self) -> Any:
        """A secret could be made, if this is a new one; and its values make sense."""
        if not self.instance.pk and accounts.signs(self.cleaned_data.get("kind", "")):
            try:
                signatures.secret_of(signatures.new_seed())
            except signatures.NoWebhookKey as error:
                raise ValidationError(f"{error}. Set WEBHOOK_KEY for web nodes and workers.") from None
        given = self.cleaned_data
        if "settings" in given and given.get("kind", self.instance.kind) in registry.platforms():
            given["settings"] = given["settings"] or {}
            try:
                registry.platform_of(given.get("kind", self.instance.kind)).check(given["settings"])
            except ValidationError as error:
                self.add_error("settings", error)
        if "allow_from" in given:
            given["allow_from"] = given["allow_from"] or []
        return super().clean()


def _settings_of_each() -> str:
    """What each kind wants to know, for people."""
    told = []
    for _, each in sorted(registry.platforms().items()):
        named = "; ".join(
            f"{setting.name}{'' if setting.is_needed else ' (optional)'}: {setting.words}" for setting in each.fields
        )
        told.append(f"{each.title}: {named}.")
    return f"A JSON object. Secrets are named by their variables, CHANNEL_SECRET_…. {' '.join(told)}"


def _listener(channel: Channel) -> Listener | None:
    """Who asks its platform for what is new, if it is one that is asked."""
    try:
        return channel.listener
    except Listener.DoesNotExist:
        return None


@admin.register(Channel)
class ChannelAdmin(ModelAdmin):
    """How people elsewhere talk to agents. Rows stay when a channel is switched off."""

    nothing_yet = "Channels let people talk to agents on other platforms. Add one for each platform."
    form = ChannelForm
    list_per_page = 50
    list_display = ["name", "kind", "agent", "state", "last_in_at", "last_out_at", "failures"]
    list_filter = ["is_active", "kind"]
    list_select_related = ["agent", "listener"]
    search_fields_of_editors = ["name"]
    readonly_fields = [
        *("state", "address", "shown_settings", "people", "sent", "last_in_at", "last_out_at", "held_until"),
        *("pairing_until", "rotated_at", "made_by", "created_at"),
    ]
    actions = ["try_out", "pairing_code", "switch_on", "switch_off", "rotate"]

    @admin.display(description="state")
    def state(self, channel: Channel) -> str:
        """In words."""
        if not channel.is_active:
            return "switched off"
        if channel.held_until and channel.held_until > timezone.now():
            return "waits, because the platform has asked for a pause"
        if channel.error:
            return f"the last message did not go out: {excerpt(channel.error, 200)}"
        if (listener := _listener(channel)) and listener.error:
            return f"nothing comes in: {excerpt(listener.error, 200)}"
        return "works" if channel.last_in_at or channel.last_out_at else "nothing has come in or gone out yet"

    @admin.display(description="address for what comes in")
    def address(self, channel: Channel) -> str:
        """Where its platform tells of events; of those that are asked, who asks."""
        if listener := _listener(channel):
            who = f", by worker {listener.worker}" if listener.status == ListenerStatus.LISTENING else ""
            at = f"; it last answered at {listener.heard_at:%Y-%m-%d %H:%M} UTC" if listener.heard_at else ""
            return f"none: its platform is polled{who}{at}"
        return f"{settings.PUBLIC_URL}/channels/{channel.name}/webhook"

    @admin.display(description="settings")
    def shown_settings(self, channel: Channel) -> str:
        """Without the secrets that some addresses hold."""
        return redact(str(channel.settings))

    @admin.display(description="who has written")
    def people(self, channel: Channel) -> str:
        return link_to_list("conversations_sender", "View senders", channel__id=channel.pk)

    @admin.display(description="deliveries")
    def sent(self, channel: Channel) -> str:
        return link_to_list("conversations_delivery", "View deliveries", account__id=channel.pk)

    @admin.display(description="failed")
    def failures(self, channel: Channel) -> str:
        return link_to_list("conversations_delivery", "View failures", account__id=channel.pk, status="failed")

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def get_readonly_fields(self, request: HttpRequest, obj: Channel | None = None) -> Any:
        """Its conversations' keys have its name."""
        return [*self.readonly_fields, *(("name", "kind") if obj else ())]

    def get_fields(self, request: HttpRequest, obj: Channel | None = None) -> Any:
        if obj is None:
            return [name for name in accounts.FIELDS if name != "is_active"]
        if self.has_change_permission(request, obj):
            return [*accounts.FIELDS, *(name for name in self.readonly_fields if name != "shown_settings")]
        shown = [name for name in accounts.FIELDS if name != "settings"]
        return [*shown, *self.readonly_fields]

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        said = {name: form.cleaned_data[name] for name in accounts.FIELDS if name in form.cleaned_data}
        if change:
            accounts.change(obj, **said)
            return
        made, obj.secret = accounts.make(made_by=request.user.get_username(), **said)
        obj.pk = made.pk

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: str | None = None) -> HttpResponse:
        """The secret itself, if it has one, which no redirection could carry without leaving it somewhere."""
        if not obj.secret:
            return super().response_add(request, obj, post_url_continue)
        return self._show(
            request, obj, f"The secret of {obj}", "What comes in and goes out is signed with it.", obj.secret
        )

    def _show(self, request: HttpRequest, channel: Channel, title: str, words: str, secret: str) -> HttpResponse:
        told = {"title": title, "opts": self.opts, "channel": channel, "words": words, SHOWN_ONCE: secret}
        context = self.admin_site.each_context(request) | told
        return TemplateResponse(request, "admin/conversations/channel_secret.html", context)

    @admin.action(description="Send a test message by the selected channels", permissions=[TOGGLE])
    def try_out(self, request: HttpRequest, chosen: QuerySet[Channel]) -> None:
        for channel in chosen:
            chat = Chat.objects.select_related("channel").filter(channel=channel).order_by("-pk").first()
            if chat is None:
                messages.warning(request, f"Nobody has written by {channel} yet: there is no chat to send a test to.")
                continue
            row = outgoing.try_out(chat)
            link = link_to("conversations_delivery", row.pk, f"what has become of the test of {channel}")
            messages.success(request, format_html("See {}.", link))

    @admin.action(description="Switch the selected channels on", permissions=[TOGGLE])
    def switch_on(self, request: HttpRequest, chosen: QuerySet[Channel]) -> None:
        self._switch(request, chosen, is_active=True)

    @admin.action(description="Switch the selected channels off", permissions=[TOGGLE])
    def switch_off(self, request: HttpRequest, chosen: QuerySet[Channel]) -> None:
        self._switch(request, chosen, is_active=False)

    def _switch(self, request: HttpRequest, chosen: QuerySet[Channel], *, is_active: bool) -> None:
        for channel in chosen:
            accounts.change(channel, is_active=is_active)
        messages.success(request, f"{len(chosen)} channels are switched {'on' if is_active else 'off'}.")

    @admin.action(description="Make another secret for the selected channel", permissions=["change"])
    def rotate(self, request: HttpRequest, chosen: QuerySet[Channel]) -> HttpResponse | None:
        channel = self._only_one(request, chosen)
        if channel is None:
            return None
        if not accounts.signs(channel.kind):
            messages.warning(request, f"Nothing was done: {channel} has no secret of this host's.")
            return None
        try:
            secret = accounts.rotate(channel)
        except signatures.NoWebhookKey as error:
            messages.error(request, f"Nothing was done. {error}.")
            return None
        words = "What comes in and goes out is signed with it; the one before counts for a day as well."
        return self._show(request, channel, f"The secret of {channel}", words, secret)

    @admin.action(description="Make a pairing code for the selected channel", permissions=["change"])
    def pairing_code(self, request: HttpRequest, chosen: QuerySet[Channel]) -> HttpResponse | None:
        channel = self._only_one(request, chosen)
        if channel is None:
            return None
        if channel.unknown != "pairing":
            messages.warning(request, f"Nothing was done: {channel} does not let anybody in by a code.")
            return None
        code = accounts.new_pairing_code(channel)
        words = (
            f"The person who sends this within 15 minutes may write from then on: {accounts.PAIR.strip()} and the code."
        )
        return self._show(request, channel, f"A pairing code of {channel}", words, code)

    def _only_one(self, request: HttpRequest, chosen: QuerySet[Channel]) -> Channel | None:
        try:
            (channel,) = chosen
        except ValueError:
            messages.warning(request, "Nothing was done: choose one channel.")
            return None
        return channel


@admin.register(Sender)
class SenderAdmin(ModelAdmin):
    """Who has written by a channel, and who was refused."""

    nothing_yet = (
        "People who write through a channel appear here, to be allowed or blocked; you can also add senders in advance."
    )
    list_per_page = 50
    list_display = ["sender_id", "name", "channel", "state", "asks", "refusals", "owner", "last_at"]
    list_filter = ["state", "channel"]
    list_select_related = ["channel", "owner"]
    search_fields_of_editors = ["sender_id"]
    fields = ["channel", "sender_id", "name", "state", "asks", "owner", "refusals", "first_at", "last_at"]
    readonly_fields = ["state", "asks", "refusals", "first_at", "last_at"]
    actions = ["allow", "block"]

    @admin.display(description="asks to be let in", empty_value="–")
    def asks(self, sender: Sender) -> str | None:
        """What they have written first; it is answered once they are let in."""
        return excerpt(redact(sender.held["text"]), 200) if sender.held else None

    def get_readonly_fields(self, request: HttpRequest, obj: Sender | None = None) -> Any:
        """Who it is stays."""
        return [*self.readonly_fields, *(("channel", "sender_id", "name") if obj else ("name",))]

    @admin.action(description="Let the selected senders write", permissions=["change"])
    def allow(self, request: HttpRequest, chosen: QuerySet[Sender]) -> None:
        self._set(request, chosen, SenderState.ALLOWED, "may write from now on")

    def _answer(self, request: HttpRequest, sender: Sender) -> None:
        """What they have asked with is answered now; where the host does not take it, they write again."""
        try:
            from_channels.take_held(sender)
        except Problem as error:
            messages.warning(request, f"The message of {sender.sender_id} is not answered: {error.detail}")

    @admin.action(description="Block the selected senders", permissions=[REVOKE])
    def block(self, request: HttpRequest, chosen: QuerySet[Sender]) -> None:
        self._set(request, chosen, SenderState.BLOCKED, "may write no longer")

    def _set(self, request: HttpRequest, chosen: QuerySet[Sender], state: SenderState, words: str) -> None:
        for sender in chosen.select_related("channel"):
            accounts.set_state(sender, state)
            if state == SenderState.ALLOWED:
                self._answer(request, sender)
        messages.success(request, f"{len(chosen)} senders {words}.")


@admin.register(Chat)
class ChatAdmin(ReadOnlyAdmin):
    """Where conversations are held elsewhere."""

    nothing_yet = "A chat of a platform appears here once somebody has written in it."
    list_display = ["key", "title", "channel", "owner", "chat_id", "thread", "created_at"]
    list_filter = ["channel"]
    list_select_related = ["channel", "owner"]
    fields = ["key", "title", "channel", "owner", "chat_id", "thread", "next_number", "created_at"]


@admin.register(Destination)
class DestinationAdmin(ModelAdmin):
    """Where agents may write besides where they were spoken to, by the names that they know."""

    nothing_yet = "Agents write where they were spoken to. Add a destination for where else one of them may write."
    list_per_page = 50
    list_display = ["name", "agent", "place", "made_by", "created_at"]
    list_filter = ["agent"]
    list_select_related = ["agent", "chat", "to_agent"]
    raw_id_fields = ["chat"]
    fields = ["agent", "name", "chat", "to_agent", "tokens_a_day", "made_by", "created_at"]
    readonly_fields = ["made_by", "created_at"]

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if not change:
            obj.made_by = request.user.get_username()
        super().save_model(request, obj, form, change)
        told = {"agent": obj.agent.name, "name": obj.name, "to": obj.place, "tokensADay": obj.tokens_a_day}
        audit.record("destination.changed" if change else "destination.made", about=obj, after=told)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        audit.record("destination.deleted", about=obj, before={"agent": obj.agent.name, "name": obj.name})
        super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Destination]) -> None:
        for each in queryset.select_related("agent"):
            self.delete_model(request, each)
