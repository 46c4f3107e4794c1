"""Tracing of torch modules into network files, without weights and without an accelerator (extra `trace`)."""
