"""A tool that is enabled and still lacks a grant: the pages say so, and offer it to whoever may grant it."""

import re

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from nanohost.console.roles import ADMIN, OPERATOR, sync_roles
from tests.support.console_client import page
from tools.models import SettingChange, ToolSetting

pytestmark = pytest.mark.django_db

LIST = page("tools_toolsetting")


@pytest.fixture(autouse=True)
def http_get(db):
    return ToolSetting.objects.update_or_create(name="http_get", defaults={"enabled": False, "grants": []})[0]


def of(role):
    sync_roles()
    member = User.objects.create_user(f"of {role}", is_staff=True)
    member.groups.add(Group.objects.get(name=role))
    client = Client()
    client.force_login(member)
    return client


def pk():
    return ToolSetting.objects.get(name="http_get").pk


def enable(client):
    chosen = {"action": "enable", "_selected_action": [pk()]}
    return client.post(LIST, chosen, follow=True).content.decode()


def offer(shown):
    """The address that the page's button posts to."""
    form = re.search(r'<form[^>]*action="([^"]*/grant/)"[^>]*>(.*?)</form>', shown, re.DOTALL)
    return (form[1], "Grant NET_HTTP to http_get" in form[2]) if form else None


def test_who_enables_it_is_told_and_grants_it_in_one_click(http_get):
    admin = of(ADMIN)
    assert offer(admin.get(LIST).content.decode()) is None
    shown = enable(admin)
    assert "http_get is enabled, and is refused until it is granted NET_HTTP." in shown
    address, can_be_granted = offer(shown)
    assert can_be_granted
    assert offer(admin.get(page("tools_toolsetting", "change", pk())).content.decode()) == (address, True)
    assert "http_get is granted NET_HTTP." in admin.post(address, follow=True).content.decode()
    http_get.refresh_from_db()
    assert (http_get.enabled, http_get.grants) == (True, ["NET_HTTP"])
    assert SettingChange.objects.latest("id").after == {"grants": ["NET_HTTP"]}
    assert offer(admin.get(LIST).content.decode()) is None
    assert "lacks no grant" in admin.post(address, follow=True).content.decode()


def test_by_the_form_of_its_page_as_well(http_get):
    form = {"enabled": "on", "approval": "never"}
    saved = of(ADMIN).post(page("tools_toolsetting", "change", pk()), form, follow=True)
    assert "until it is granted NET_HTTP" in saved.content.decode()


def test_an_operator_is_told_and_grants_nothing(http_get):
    operator = of(OPERATOR)
    shown = enable(operator)
    address, can_be_granted = offer(shown)
    assert not can_be_granted
    assert "An admin may grant it." in shown
    assert operator.post(address).status_code == 403
    assert of(ADMIN).get(address).status_code == 405
    http_get.refresh_from_db()
    assert http_get.grants == []


def test_what_the_ceiling_forbids_is_not_offered(settings):
    settings.PERMISSIONS_GRANTED = []
    assert offer(enable(of(ADMIN))) is None
