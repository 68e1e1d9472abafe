"""The page *Add a colleague*: a person, a role and a key in one form; and the link by which they set their password."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import IntegrityError, transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.views.decorators.http import require_http_methods

from agent.models import Agent
from nanohost.accounts import invitations, keys
from nanohost.accounts.models import EVERY_AGENT, NEW_SCOPES
from nanohost.console.roles import ADMIN, OPERATOR, ROLES, VIEWER
from nanohost.lib.admin import SHOWN_ONCE

TAKEN = "This name is already taken; choose another one."

NEEDED = ("auth.add_user", "auth.change_user", "accounts.add_apikey")

_MAY = {VIEWER: "sees every page of this console", OPERATOR: "also cancels, decides, pauses", ADMIN: "may do all of it"}


class ColleagueForm(forms.Form):
    """Who it is, what they may do, and whether they get a key."""

    username = forms.CharField(label="User name", max_length=150, help_text="They sign in by it.")
    email = forms.EmailField(label="E-mail", required=False)
    role = forms.ChoiceField(
        required=False,
        choices=[("", "none: the chat alone"), *((role, f"{role}: {_MAY[role]}") for role in ROLES)],
        help_text="What they may do in this console.",
    )
    has_key = forms.BooleanField(label="An API key as well, for their programs", required=False)
    agents = forms.MultipleChoiceField(
        label="Agents of the key",
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="None: those that are public.",
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        names = Agent.objects.order_by("name").values_list("name", flat=True)
        self.fields["agents"].choices = [(EVERY_AGENT, "every agent"), *((name, name) for name in names)]  # type: ignore[attr-defined]

    def clean_username(self) -> str:
        """A name that nobody has, such as Django takes."""
        name: str = get_user_model().normalize_username(self.cleaned_data["username"])
        get_user_model()._meta.get_field("username").run_validators(name)
        if get_user_model().objects.filter(username=name).exists():
            raise ValidationError(TAKEN)
        return name


@require_http_methods(["GET", "HEAD", "POST"])
def add(request: HttpRequest) -> HttpResponse:
    """The form, and what comes of it: a link and a key, shown once by this answer."""
    _refuse_others(request)
    form = ColleagueForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        try:
            return _made(request, form.cleaned_data)
        except IntegrityError:  # another admin was faster, since the form was looked at
            form.add_error("username", TAKEN)
    context = {"title": "Add a colleague", "form": form, "days": invitations.days()}
    status = 400 if request.method == "POST" else 200
    return TemplateResponse(
        request, "console/colleague.html", admin.site.each_context(request) | context, status=status
    )


def _made(request: HttpRequest, said: dict[str, Any]) -> HttpResponse:
    with transaction.atomic():  # all of it, or nothing
        user: Any = get_user_model()(username=said["username"], email=said["email"], is_staff=bool(said["role"]))
        user.set_unusable_password()
        user.save()
        if said["role"]:
            user.groups.add(Group.objects.get(name=said["role"]))
        key = ""
        if said["has_key"]:
            limits = {"name": "First key", "scopes": NEW_SCOPES, "agent_names": said["agents"]}
            key = keys.make(owner=user, **limits)[1]
        token = invitations.invite(user)
    return _shown(request, user, token=token, key=key)


def _refuse_others(request: HttpRequest) -> None:
    if not request.user.has_perms(NEEDED):
        raise PermissionDenied


def _shown(request: HttpRequest, user: Any, *, token: str, key: str) -> HttpResponse:
    base = settings.PUBLIC_URL or request.build_absolute_uri("/").rstrip("/")
    told = {
        "title": f"{user} may come in",
        "person": user,
        "link": f"{base}{reverse('chat_join', args=[token])}",
        "key": key,
        "days": invitations.days(),
        SHOWN_ONCE: token,
    }
    return TemplateResponse(request, "console/colleague_made.html", admin.site.each_context(request) | told)


@require_http_methods(["GET", "HEAD", "POST"])
def invite_again(request: HttpRequest, pk: int) -> HttpResponse:
    """Another link for somebody who has not come yet."""
    _refuse_others(request)
    user = get_user_model().objects.filter(pk=pk).first()
    if user is None:
        raise Http404("There is no such user.")
    wrong = ""
    if request.method == "POST":
        try:
            return _shown(request, user, token=invitations.invite(user), key="")
        except ValidationError as error:
            wrong = " ".join(error.messages)
    context = {"title": f"Invite {user}", "person": user, "wrong": wrong, "days": invitations.days()}
    context = admin.site.each_context(request) | context
    return TemplateResponse(request, "console/colleague_invite.html", context, status=400 if wrong else 200)


urlpatterns = [
    path("", admin.site.admin_view(add), name="colleague"),
    path("<int:pk>/", admin.site.admin_view(invite_again), name="colleague_invite"),
]
