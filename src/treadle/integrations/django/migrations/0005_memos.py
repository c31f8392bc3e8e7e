"""The table of what jobs remember between their attempts."""

from django.db import migrations

from treadle.integrations.django.operations import UpgradeTables


class Migration(migrations.Migration):
    dependencies = [("treadle", "0004_schedule_ids")]
    operations = [UpgradeTables(sqlite="0011_memos", postgresql="0015_memos.pre")]
