"""The Django app: its name and label, and the discovery of tasks.py in every installed app."""

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class TreadleConfig(AppConfig):
    """`treadle` for `manage.py migrate` and for permissions."""

    name = "treadle.integrations.django"
    label = "treadle"
    verbose_name = "Treadle"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import the module `tasks` of each installed app: what they declare, a worker then knows."""
        autodiscover_modules("tasks")
