"""What the machine did while an engine or a profile ran: sampled signals, disturbances in them, and what to change."""
