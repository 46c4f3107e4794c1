"""Controllers that change a running cluster: autoscalers and faults."""
