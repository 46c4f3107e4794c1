"""The database of one or more servers: jobs with their events and results, uploaded files, and the servers themselves.

`tables` are the tables, and `database` the connection to them. `jobs` and `uploads` read and write them.
"""
