"""Fields of check-ins have their name; no table changes."""

import django.core.validators
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("agent", "0005_heartbeat_minutes"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]
    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RenameField("agent", "heartbeat_owner", "check_in_owner"),
                migrations.AlterField(
                    "agent",
                    "check_in_owner",
                    models.ForeignKey(
                        blank=True,
                        db_column="heartbeat_owner_id",
                        help_text="On whose behalf its document HEARTBEAT is looked at. Empty: it is not.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="check-in owner",
                    ),
                ),
                migrations.RenameField("agent", "heartbeat_minutes", "check_in_minutes"),
                migrations.AlterField(
                    "agent",
                    "check_in_minutes",
                    models.PositiveIntegerField(
                        blank=True,
                        db_column="heartbeat_minutes",
                        help_text="How often it is looked at, in minutes. Empty: HEARTBEAT_MINUTES.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(1440),
                        ],
                        verbose_name="check-in minutes",
                    ),
                ),
            ]
        ),
        migrations.AlterField(
            "agent",
            "may_reschedule",
            models.BooleanField(
                db_default=False,
                default=False,
                help_text="May use the tool schedule also in turns that a schedule or a check-in has begun.",
            ),
        ),
    ]
