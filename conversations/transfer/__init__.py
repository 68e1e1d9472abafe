"""Conversations in nanobot's files: brought in and handed out."""
