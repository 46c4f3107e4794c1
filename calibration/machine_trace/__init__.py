"""What the machine did while an engine or a profile ran: sampled lanes, disturbances in them, and what to change."""
