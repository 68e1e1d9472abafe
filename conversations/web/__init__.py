"""What stands in front of Django: requests that wait for answers, and health."""
