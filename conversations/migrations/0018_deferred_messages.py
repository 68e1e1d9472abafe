"""Later messages are called deferred messages; their table keeps its name, and so do its indexes."""

import django.db.models.deletion
from django.db import migrations, models

from nanohost.lib.renaming import rename_permissions


class Migration(migrations.Migration):
    dependencies = [
        ("conversations", "0017_leases"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
    ]
    operations = [
        migrations.AlterModelTable("LaterMessage", "conversations_latermessage"),
        migrations.RenameModel("LaterMessage", "DeferredMessage"),
        migrations.AlterField(
            "DeferredMessage",
            "conversation",
            models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="deferred_messages",
                to="conversations.conversation",
            ),
        ),
        rename_permissions("conversations", "later message", "deferred message"),
    ]
