"""What the host gives a process: memory, a home folder, files and processes that must not outlive it."""
