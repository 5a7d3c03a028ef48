"""What a build computes, as pure jobs, and who does them: threads of this process, or the machines of a cluster."""
