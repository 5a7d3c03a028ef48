"""From sources to a shared library: zig, its cache, processes of compilers, and what every library contains."""
