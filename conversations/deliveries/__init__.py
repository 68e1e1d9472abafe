"""What goes out of conversations: endpoints, the outbox, and how its rows are sent."""
