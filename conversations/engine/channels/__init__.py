"""What comes in by channels: listening, taking in, and what wakes an agent in a group."""
