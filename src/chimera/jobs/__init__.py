"""Jobs in the background: submission, queue, start on all workers or none, updates and download of the results."""
