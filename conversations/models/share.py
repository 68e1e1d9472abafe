"""Links by which others read a conversation."""

from django.conf import settings
from django.db import models
from django.utils import timezone

from conversations.models.conversation import Conversation
from nanohost.lib.ids import new_id


class Share(models.Model):
    """A link by which whoever has it reads a conversation, up to where it was when the link was made. Rows stay when
    it ends, so that its owner sees what was shared."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    conversation = models.ForeignKey(
        Conversation, on_delete=models.CASCADE, related_name="shares", help_text="What is shared."
    )
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False, help_text="Who shares it."
    )
    digest = models.CharField(
        max_length=64, unique=True, editable=False, help_text="SHA-256 of the link's token, hexadecimal."
    )
    through_seq = models.PositiveBigIntegerField(help_text="The last message that it shows.")
    with_tools = models.BooleanField(default=False, help_text="Whether calls of tools are shown, with their results.")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(help_text="The link stops working then.")
    revoked_at = models.DateTimeField(null=True, blank=True, help_text="When the link was revoked.")

    class Meta:
        # There is no page of it in the console: whose it is lists and revokes it.
        default_permissions = ()
        ordering = ["-created_at"]
        indexes = [models.Index(fields=["owner", "-created_at"], name="shares_of_an_owner")]

    def __str__(self) -> str:
        return f"share {self.pk}"

    @property
    def state(self) -> str:
        """``active``, ``expired`` or ``revoked``."""
        if self.revoked_at:
            return "revoked"
        return "expired" if self.expires_at <= timezone.now() else "active"
