"""Where bytes come from: a local file, a server, an object store, a pipe. What they are is the matter of `artifact`."""
