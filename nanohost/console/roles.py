"""The roles of staff: groups whose permissions are read off the console's registry, so that no page is forgotten."""

from typing import Any

from django.contrib.auth import get_permission_codename
from django.contrib.auth.models import Group, Permission
from django.contrib.contenttypes.models import ContentType
from django.db import transaction

from conversations.models import Conversation, IntakePause
from nanohost.console.site import model_pages
from nanohost.lib.admin import ACTIONS, PAUSE, PIN, UNDO

VIEWER, OPERATOR, ADMIN = ROLES = ("viewer", "operator", "admin")


# What is acted on elsewhere than in a list of its own.
_WITHOUT_A_LIST: tuple[tuple[Any, str], ...] = ((IntakePause, PAUSE), (Conversation, PIN), (Conversation, UNDO))


def sync_roles() -> None:
    """Give each role what it may do now: a viewer sees every page, an operator also acts, an admin may do everything.

    What was given to these groups or taken from them by hand is undone: for another mix, people make a group.
    """
    with transaction.atomic():
        acting = _permissions_to_act()
        every = list(Permission.objects.select_related("content_type"))
        options = [model._meta for model in model_pages()]
        pages = {(each.app_label, get_permission_codename("view", each)) for each in options}
        seen = [each for each in every if (each.content_type.app_label, each.codename) in pages]
        for role, permissions in ((VIEWER, seen), (OPERATOR, [*seen, *acting]), (ADMIN, every)):
            group, _ = Group.objects.get_or_create(name=role)
            group.permissions.set(permissions)


def acts_of(page: Any) -> set[str]:
    """The permissions that actions of a page ask for, besides Django's own: ``cancel``, ``toggle`` and the like."""
    asked = (getattr(getattr(page, name, None), "allowed_permissions", ()) for name in page.actions or ())
    return {each for permissions in asked for each in permissions if each in ACTIONS}


def _permissions_to_act() -> list[Permission]:
    of_pages = ((model, act) for model, page in model_pages().items() for act in sorted(acts_of(page)))
    made = []
    for model, act in (*of_pages, *_WITHOUT_A_LIST):
        permission, _ = Permission.objects.get_or_create(
            content_type=ContentType.objects.get_for_model(model, for_concrete_model=False),
            codename=get_permission_codename(act, model._meta),
            defaults={"name": f"Can {act} {model._meta.verbose_name}"[:255]},
        )
        made.append(permission)
    return made
