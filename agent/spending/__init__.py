"""What model calls cost, and how much they may."""
