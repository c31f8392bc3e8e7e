"""Tasks that come with treadle. None is there until an application registers it."""
