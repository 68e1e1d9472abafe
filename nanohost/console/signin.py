"""Signing in: from which address, and what is told to whoever failed too often."""

import ipaddress
import math

from axes.models import AccessAttempt
from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from nanohost.lib import locality


def network_of(request: HttpRequest) -> str:
    """The address a request comes from, or for IPv6 its network."""
    try:
        address = ipaddress.ip_address(locality.address_of(request))
    except ValueError:
        connected: str = request.META.get("REMOTE_ADDR", "")
        return connected
    if address.version == 6:  # whoever has one has all of its network
        return str(ipaddress.IPv6Network((address, 64), strict=False).network_address)
    return str(address)


def locked_out(request: HttpRequest, *_: object) -> HttpResponse:
    """429 with the time that is left."""
    address = request.axes_ip_address  # type: ignore[attr-defined]  # the middleware of django-axes sets it
    latest = AccessAttempt.objects.filter(ip_address=address).order_by("-attempt_time").first()
    left = settings.AXES_COOLOFF_TIME
    if latest:
        left -= timezone.now() - latest.attempt_time
    seconds = max(1, math.ceil(left.total_seconds()))
    context = {**admin.site.each_context(request), "title": "Sign-in", "minutes": math.ceil(seconds / 60)}
    answer = render(request, "console/locked_out.html", context, status=429)
    answer["Retry-After"] = str(seconds)
    return answer
