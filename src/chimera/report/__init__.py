"""What a run's folder looks like to a person: plots and the HTML report. It reads files and imports core only."""
