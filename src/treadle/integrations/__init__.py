"""Frameworks: what makes treadle at home in a program that somebody else's framework runs. One folder or file each."""
