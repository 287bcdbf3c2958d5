"""Common parts of all web servers: the application, its middleware, request bodies, errors, logs and Prometheus metrics."""
