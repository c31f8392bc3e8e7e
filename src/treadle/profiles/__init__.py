"""Profiles of whole applications, to use or to copy: `from treadle.profiles import backend`, then `backend.PROFILE`."""
