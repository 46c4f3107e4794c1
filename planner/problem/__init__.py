"""The question: model, hardware, objectives, demand, tariff and the candidates that answer it."""
