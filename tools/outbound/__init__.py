"""How tools reach others: addresses, the client, and what it reads."""
