"""The REST API of the coordinator: routes, checks of requests, and views of its state."""
