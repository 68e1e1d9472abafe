from datetime import timedelta
from typing import Any

from django.db import migrations
from django.utils import timezone


def count_again(apps: Any, schema_editor: Any) -> None:
    """Hours that are still shown get what was not counted before: how long turns took, to a tenth."""
    shown = timezone.now() - timedelta(days=31)
    apps.get_model("console", "Hour").objects.filter(hour__gte=shown).update(settled=False)


class Migration(migrations.Migration):
    dependencies = [("console", "0001_figures")]

    operations = [migrations.RunPython(count_again, migrations.RunPython.noop)]
