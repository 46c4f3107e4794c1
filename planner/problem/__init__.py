"""The planning request: model, hardware, objectives, demand, tariff and the candidates that may answer it."""
