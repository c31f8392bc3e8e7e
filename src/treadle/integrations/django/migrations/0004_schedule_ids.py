"""An id of its own for each schedule."""

from django.db import migrations

from treadle.integrations.django.operations import UpgradeTables


class Migration(migrations.Migration):
    dependencies = [("treadle", "0003_trace")]
    operations = [UpgradeTables(sqlite="0010_schedule_ids", postgresql="0014_schedule_ids.pre")]
