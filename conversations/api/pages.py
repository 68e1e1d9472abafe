"""Orders of pages."""

from nanohost.lib.api import Pages


class NewestTurnsFirst(Pages):
    ordering = "-number"


class InSeqOrder(Pages):
    ordering = "seq"


class NewestMessagesFirst(Pages):
    ordering = "-seq"
