"""The tables that the server needs: tokens, counts by the minute, workers asked to stop."""

from django.db import migrations

from treadle.integrations.django.operations import UpgradeTables


class Migration(migrations.Migration):
    dependencies = [("treadle", "0001_tables")]
    operations = [UpgradeTables(sqlite="0008_server", postgresql="0012_server.pre")]
