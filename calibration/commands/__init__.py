"""One file for each larger subcommand of `calibrate`; cli.py registers them."""
