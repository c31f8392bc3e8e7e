"""The column for the trace that a job belongs to."""

from django.db import migrations

from treadle.integrations.django.operations import UpgradeTables


class Migration(migrations.Migration):
    dependencies = [("treadle", "0002_server")]
    operations = [UpgradeTables(sqlite="0009_trace", postgresql="0013_trace.pre")]
