"""What people decide and answer: approvals, in the console and in chats, and questions."""
