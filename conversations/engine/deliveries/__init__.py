"""Sending deliveries, and what becomes of those that were lost."""
