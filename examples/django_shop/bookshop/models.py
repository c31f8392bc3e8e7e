"""What the shop keeps."""

from django.db import models


class Order(models.Model):
    """A book somebody has bought."""

    email = models.EmailField()
    title = models.CharField(max_length=200)
    confirmed_at = models.DateTimeField(null=True)
