"""Result files of load clients, read as measured runs: one module for each client, and `results` recognises them."""
