"""A model's new name, in migrations: what Django's RenameModel leaves as it is."""

from typing import Any

from django.db.migrations import RunPython

ACTS = ("add", "change", "delete", "view")


def rename_permissions(app: str, before: str, after: str) -> RunPython:
    """Give a model's permissions its new name, so that groups and users keep what was granted to them: Django would
    make new ones, which nobody has. ``before`` and ``after``: the names that people read, as "deferred message"."""

    def rename(apps: Any, editor: Any, old: str, new: str) -> None:
        mine = apps.get_model("auth", "Permission").objects.using(editor.connection.alias)
        for act in ACTS:
            known = mine.filter(content_type__app_label=app, codename=_codename(act, old))
            known.update(codename=_codename(act, new), name=f"Can {act} {new}")

    return RunPython(
        lambda apps, editor: rename(apps, editor, before, after),
        lambda apps, editor: rename(apps, editor, after, before),
    )


def _codename(act: str, words: str) -> str:
    return f"{act}_{words.replace(' ', '').replace('-', '')}"
