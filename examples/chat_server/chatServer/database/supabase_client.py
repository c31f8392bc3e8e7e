"""The client of services that act for the system, not for one user."""

from chatServer.database.connection import Pool, get_database_manager


async def create_system_client() -> Pool:
    """It sees every user's rows, so only background work may have it."""
    return get_database_manager().pool
