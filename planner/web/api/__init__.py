"""The addresses of the API: one router for each group of documents, which `planner.web.app` includes."""
