"""Policies: which job a free worker serves next. One policy per file."""
