"""Names for Django's admin and its permissions. They hold no fields and no rows: the admin asks `app`."""

from typing import ClassVar

from django.db import models


class Job(models.Model):
    """A job, for `treadle.view_job` and `treadle.change_job`."""

    id = models.UUIDField(primary_key=True)

    class Meta:
        managed = False
        default_permissions: ClassVar = ("view", "change")


class Queue(models.Model):
    """A queue, for `treadle.view_queue` and `treadle.change_queue`."""

    name = models.CharField(max_length=200, primary_key=True)

    class Meta:
        managed = False
        default_permissions: ClassVar = ("view", "change")
