"""One module for each page: it asks the API, and says which template shows the answer."""
