"""Profiles of whole applications, to use or to copy: `from treadle.profiles import backend`, then `backend.PROFILE`."""

__all__ = ["backend", "chat_server", "companion", "mail_assistant", "tenant_ops"]
