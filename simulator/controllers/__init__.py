"""What changes a fleet while it serves: autoscalers and faults."""
