"""When jobs are made, and by what rule."""
