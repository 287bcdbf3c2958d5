"""Jobs on a Slurm cluster: options, batch script, commands, states, and the client behind the commands for jobs."""
