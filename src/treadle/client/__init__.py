"""A treadle that runs elsewhere: the operator's part of `Treadle`, over the REST API of `treadle serve`.

>>> from treadle.client import RemoteTreadle
>>> there = RemoteTreadle("https://jobs.example.com", "treadle_…")
>>> there.url
'https://jobs.example.com'
"""

from treadle.client.remote import RemoteTreadle

__all__ = ["RemoteTreadle"]
