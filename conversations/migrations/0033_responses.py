from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("conversations", "0032_attachments")]

    operations = [
        migrations.AddField(
            model_name="conversation",
            name="deletions",
            field=models.PositiveIntegerField(
                db_default=0, default=0, help_text="How often clients have deleted of what was said."
            ),
        ),
        migrations.AddField(
            model_name="conversation",
            name="is_dropped",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Its client wants nothing of it kept: it is deleted once its turn has ended.",
                verbose_name="dropped",
            ),
        ),
        migrations.AddIndex(
            model_name="conversation",
            index=models.Index(
                condition=models.Q(("is_dropped", True)), fields=["created_at"], name="dropped_conversations"
            ),
        ),
        migrations.CreateModel(
            name="StoredResponse",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("number", models.PositiveIntegerField(help_text="Which part of the turn it is, from 0.")),
                (
                    "previous_id",
                    models.UUIDField(blank=True, help_text="The response that it goes on from.", null=True),
                ),
                (
                    "asked",
                    models.JSONField(
                        help_text="What it was asked with, as it is told again; see openai_api/response_view.py."
                    ),
                ),
                (
                    "is_background",
                    models.BooleanField(
                        default=False, help_text="Whether its client waits elsewhere.", verbose_name="background"
                    ),
                ),
                (
                    "last_sequence_number",
                    models.PositiveIntegerField(
                        blank=True, help_text="Of the last event that a reader of its stream was sent.", null=True
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "turn",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=models.deletion.CASCADE,
                        related_name="responses",
                        to="conversations.turn",
                    ),
                ),
            ],
            options={
                "verbose_name": "response",
                "db_table": "conversations_response",
                "ordering": ["turn_id", "number"],
                "constraints": [models.UniqueConstraint(fields=("turn", "number"), name="one_response_a_part")],
            },
        ),
    ]
