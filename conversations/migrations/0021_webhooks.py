"""Webhooks, and the outbox of what goes out."""

import django.db.models.deletion
from django.db import migrations, models

import conversations.models
import nanohost.lib.ids


class Migration(migrations.Migration):
    dependencies = [
        ("conversations", "0020_approvals"),
    ]

    operations = [
        migrations.CreateModel(
            name="WebhookEndpoint",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(help_text="What it is for, for people.", max_length=100)),
                (
                    "url",
                    models.CharField(
                        help_text="Where events are sent to, by POST; redirects are not followed.",
                        max_length=2000,
                        validators=[conversations.models.validate_url],
                    ),
                ),
                (
                    "kinds",
                    models.JSONField(
                        default=list,
                        help_text="The kinds of events that it is sent.",
                        validators=[conversations.models.validate_kinds],
                    ),
                ),
                ("is_active", models.BooleanField(default=True, help_text="Whether it is sent any.")),
                (
                    "disabled_because",
                    models.CharField(
                        blank=True, help_text="Why the host has switched it off, if the host has.", max_length=200
                    ),
                ),
                (
                    "seed",
                    models.CharField(
                        editable=False, help_text="What its secret is made of, with WEBHOOK_KEY.", max_length=64
                    ),
                ),
                (
                    "former_seed",
                    models.CharField(
                        blank=True,
                        editable=False,
                        help_text="The one before: what is sent is signed with both for a day.",
                        max_length=64,
                    ),
                ),
                (
                    "rotated_at",
                    models.DateTimeField(blank=True, help_text="When its secret was last made anew.", null=True),
                ),
                (
                    "digest",
                    models.CharField(
                        editable=False,
                        help_text="SHA-256 of its secret, hexadecimal: whether another WEBHOOK_KEY would make another secret.",
                        max_length=64,
                    ),
                ),
                ("made_by", models.CharField(blank=True, editable=False, help_text="Who made it.", max_length=150)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "verbose_name": "webhook",
                "ordering": ["name", "id"],
            },
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                (
                    "fence",
                    models.PositiveIntegerField(
                        default=0, help_text="Raised by each claim; only the latest may write."
                    ),
                ),
                ("worker", models.CharField(blank=True, help_text="Who claimed it last.", max_length=128)),
                (
                    "lease_until",
                    models.DateTimeField(blank=True, help_text="Until then nobody else may claim it.", null=True),
                ),
                (
                    "notified_at",
                    models.DateTimeField(
                        blank=True, db_column="rung_at", help_text="When workers were last notified of it.", null=True
                    ),
                ),
                (
                    "id",
                    models.UUIDField(
                        default=nanohost.lib.ids.new_id,
                        editable=False,
                        help_text="Receivers know it by this, however often it comes.",
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "channel",
                    models.CharField(
                        choices=[("webhook", "Webhook")], default="webhook", help_text="How it goes out.", max_length=16
                    ),
                ),
                ("kind", models.CharField(help_text="The kind of event that it tells of.", max_length=32)),
                ("data", models.JSONField(help_text="What it tells: ids and facts, no contents.")),
                (
                    "owner_id",
                    models.BigIntegerField(blank=True, help_text="Whose event it is, if it is somebody's.", null=True),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("queued", "Queued"),
                            ("running", "Running"),
                            ("delivered", "Delivered"),
                            ("failed", "Failed"),
                        ],
                        default="queued",
                        max_length=9,
                    ),
                ),
                ("run_after", models.DateTimeField(blank=True, help_text="Not before then.", null=True)),
                ("expires_at", models.DateTimeField(help_text="It is tried until then.")),
                (
                    "attempts",
                    models.PositiveIntegerField(default=0, help_text="How often workers have begun to send it."),
                ),
                ("tries", models.JSONField(blank=True, default=list, help_text="What became of the latest attempts.")),
                (
                    "last_status",
                    models.PositiveIntegerField(blank=True, help_text="The HTTP status of the last answer.", null=True),
                ),
                ("error", models.CharField(blank=True, help_text="What went wrong last.", max_length=500)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "ended_at",
                    models.DateTimeField(blank=True, help_text="When it was delivered, or given up.", null=True),
                ),
                (
                    "endpoint",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        help_text="Where a webhook's goes.",
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="deliveries",
                        to="conversations.webhookendpoint",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "deliveries",
                "ordering": ["-created_at"],
                "indexes": [
                    models.Index(fields=["status", "notified_at"], name="deliveries_by_status"),
                    models.Index(fields=["endpoint", "status"], name="deliveries_of_an_endpoint"),
                    models.Index(fields=["-created_at"], name="deliveries_by_time"),
                ],
            },
        ),
    ]
