"""Compaction: what is taken in and what is made of it, who works on it, and the summaries of a day."""
