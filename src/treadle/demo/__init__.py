"""A small queue at work, to be looked at."""
