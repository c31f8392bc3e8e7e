"""Django: put "treadle.integrations.django" into INSTALLED_APPS, and write your jobs in tasks.py.

from treadle.integrations.django import app

@app.task
def send_receipt(order_id: int) -> None: ...
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.integrations.django.project import app

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    """`app` is made when it is first asked for: Django imports this module before it has read your settings."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from treadle.integrations.django.project import app  # noqa: PLC0415

    globals()["app"] = app
    return app
