"""The page that an invitation leads to: a first password is set, and one is signed in."""

from typing import Any

from axes.handlers.proxy import AxesProxyHandler
from django.contrib.auth import login
from django.contrib.auth.forms import SetPasswordForm
from django.contrib.auth.signals import user_login_failed
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from nanohost.accounts import invitations
from nanohost.console.signin import locked_out

_HEADERS = {
    "Cache-Control": "no-store",
    # The address opens an account: no other host is told of it, and no search engine. (With "no-referrer", browsers
    # would send the form without its origin, as if another site had.)
    "Referrer-Policy": "same-origin",
    "X-Robots-Tag": "noindex, nofollow",
}


@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
def show(request: HttpRequest, token: str) -> HttpResponse:
    """The form. Whoever sends it by links that are none waits as one who fails to sign in, and by the same count."""
    if not AxesProxyHandler.is_allowed(request, {"username": ""}):
        return locked_out(request)
    user = invitations.whose(token)
    if user is None:
        # What is only loaded is not counted: another site's page can have its visitors' browsers load what it likes,
        # and their addresses would wait. It needs no bound, since nobody guesses 128 bits.
        if request.method == "POST":
            user_login_failed.send(__name__, credentials={"username": ""}, request=request)
        return _page(request, None, status=404)
    form: Any = SetPasswordForm(user, request.POST if request.method == "POST" else None)
    if request.method != "POST" or not form.is_valid():
        return _page(request, form, status=400 if request.method == "POST" else 200)
    user = invitations.accept(token, form.cleaned_data["new_password1"])
    if user is None:
        return _page(request, None, status=404)
    login(request, user, backend="django.contrib.auth.backends.ModelBackend")
    return HttpResponseRedirect(reverse("admin:index" if user.is_staff else "chat"))


def _page(request: HttpRequest, form: Any, *, status: int) -> HttpResponse:
    answer = render(request, "chat/join.html", {"form": form}, status=status)
    for header, value in _HEADERS.items():
        answer[header] = value
    return answer
