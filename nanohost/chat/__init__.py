"""The chat in the browser, at ``/chat/``: a page of static files, and a client of the API like any other."""
