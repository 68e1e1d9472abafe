"""Channels: what each platform is spoken to like, the accounts, and how a message goes out to a chat."""
