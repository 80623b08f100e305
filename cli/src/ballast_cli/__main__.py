"""`python -m ballast_cli`: the same as the console script."""

from ballast_cli.main import app

app()
