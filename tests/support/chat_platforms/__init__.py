"""Platforms of chats on loopback, each as strict as its published protocol: what it does not know, it refuses."""

from collections.abc import Sequence
from typing import Any

from tests.support.chat_platforms.accounts import SECRETS, hear, make_channel
from tests.support.chat_platforms.mail import MailHouse
from tests.support.chat_platforms.matrix import MatrixServer
from tests.support.chat_platforms.slack import SlackServer
from tests.support.chat_platforms.telegram import TelegramServer

PEERS: Sequence[Any] = (TelegramServer, SlackServer, MatrixServer, MailHouse)

__all__ = ["PEERS", "SECRETS", "MailHouse", "MatrixServer", "SlackServer", "TelegramServer", "hear", "make_channel"]
