"""Work that takes longer than a request may: kinds of jobs, their queue, and the processes that run them."""
