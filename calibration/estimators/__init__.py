"""Ways to predict operator times that compete with the shipped models; used to choose, never to plan."""
