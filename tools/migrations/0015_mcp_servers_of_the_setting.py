from django.db import migrations, models


class Migration(migrations.Migration):
    """Which MCP servers follow the setting MCP_SERVERS."""

    dependencies = [
        ("tools", "0014_one_model_of_seen_tools"),
    ]

    operations = [
        migrations.AddField(
            model_name="mcpserver",
            name="by_setting",
            field=models.BooleanField(
                db_default=False, default=False, editable=False, help_text="Whether it follows the setting MCP_SERVERS."
            ),
        ),
    ]
