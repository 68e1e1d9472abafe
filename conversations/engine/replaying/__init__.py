"""Replays: a stored turn asked again, what it is asked, who works on it, and its grades."""
