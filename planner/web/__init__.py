"""The planner as a page and an API: the server of `plan serve`.

`app` assembles the server from its parts. `documents` computes what an answer of the API contains, `api` gives it an
address, and `jobs` runs what takes longer than a request may. `templates` and `static` are the pages, which call the
API like any other client.
"""
