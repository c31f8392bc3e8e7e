"""Pages for people, on the REST API: each page calls the API's own functions and shows what they answer.

A page reads nothing that the API cannot give, and does nothing that it cannot do.
"""
