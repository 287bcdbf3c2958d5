"""REST nodes: masters and workers as small web servers, and what starts them."""
