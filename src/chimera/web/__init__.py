"""What all of Chimera's web servers share: the application, its gate, bodies, errors, logs, figures for Prometheus."""
