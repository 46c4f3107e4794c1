"""The addresses of the API, one router for each subject."""
