"""The only place with a loop, a clock, a thread: poll -> step -> perform."""
