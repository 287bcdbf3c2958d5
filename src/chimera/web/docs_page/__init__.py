"""The page ``/docs`` of every server: its routes, with forms that send requests."""
