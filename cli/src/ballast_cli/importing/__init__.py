"""Configurations of other pickers, put into Ballast's words. `plugins` has the table, `endpoint_picker` applies it."""
