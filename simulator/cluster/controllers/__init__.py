"""What changes a running cluster: autoscalers and faults."""
