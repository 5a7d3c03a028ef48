"""Every file that a build reads, writes or keeps: each whole or not there, whatever ends the build."""
