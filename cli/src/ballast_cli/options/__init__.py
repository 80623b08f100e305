"""Options that several commands share, each declared once, with the settings that they make.

A group is a dataclass whose fields are options; `declaring` turns groups into the one flat signature that typer reads.
"""
