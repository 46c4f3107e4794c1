"""Evaluation of candidates under a load: closed forms, simulated runs, their steady state, and error bars."""
