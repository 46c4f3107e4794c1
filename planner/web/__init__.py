"""The planner for browsers, programs and assistants: `plan serve` (pages and API) and `plan mcp` (tools).

A module imports only those after it in this list:

- `command`, `mcp`: the commands `plan serve` and `plan mcp`; `mcp_tools` has the tools.
- `app`: the server, assembled from the parts below.
- `pages`, `api`: the addresses. `templates` and `static` are the pages, which call the API like any other client.
- `jobs`: work that takes longer than a request may: its kinds, its queue and its processes.
- `documents`: what the API returns, as functions that know nothing of HTTP.
- `questions`, `uploads`, `inference`: what users send: planning questions, files, and tasks for an endpoint.
- `security`, `metrics`, `problems`: rules, counts and errors of every request.
- `store`, `settings`: the database, and the settings of one server.
"""
