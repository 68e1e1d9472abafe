"""The engine: it takes messages in, runs their turns, and ends them."""
