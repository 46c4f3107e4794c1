"""What is known of a candidate without a simulation: bounds that discard it, and estimates of its queues."""
