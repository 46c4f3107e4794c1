"""`plan verify` and `plan drift`: the predictions of a plan compared with a measured run or a live server."""
