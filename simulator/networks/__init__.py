"""Networks that are not language models: from stages of operators to seconds, memory and the time of a job."""
