"""The tables of treadle, and two names for the admin's permissions.

A treadle whose schema has changed brings one more file like this one; tests/integrations says when it is missing.
"""

from django.db import migrations, models

from treadle.integrations.django.operations import UpgradeTables


class Migration(migrations.Migration):
    initial = True
    operations = [
        UpgradeTables(sqlite="0007_lanes", postgresql="0011_enqueue.pre"),
        migrations.CreateModel(
            name="Job",
            fields=[("id", models.UUIDField(primary_key=True, serialize=False))],
            options={"managed": False, "default_permissions": ("view", "change")},
        ),
        migrations.CreateModel(
            name="Queue",
            fields=[("name", models.CharField(max_length=200, primary_key=True, serialize=False))],
            options={"managed": False, "default_permissions": ("view", "change")},
        ),
    ]
