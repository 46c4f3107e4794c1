"""The planner for browsers, programs and assistants: `plan serve` (pages and API) and `plan mcp` (tools).

A module imports only those after it in this list:

- `serve`, `mcp`: the commands `plan serve` and `plan mcp`.
- `app`: the server, assembled from the parts below.
- `api`: the addresses that programs call.
- `warm_up`: what questions share, loaded after the start.
- `pages`: the addresses for browsers. `templates` and `static` are the pages, which call the API like other clients.
- `jobs`: work that takes longer than a request may: its kinds, its queue and its processes.
- `documents`: what the API returns, as functions that know nothing of HTTP.
- `questions`, `inference`, `uploads`: what users send: planning questions, tasks for an endpoint, and files.
- `endpoints`: the endpoints that the operator has listed.
- `store`: the database.
- `security`, `metrics`, `problems`: rules, counts and errors of every request.
- `scripts`: the modules of JavaScript that a page loads.
- `settings`: the settings of one server.

The contract in `.importlinter` holds this order.
"""
