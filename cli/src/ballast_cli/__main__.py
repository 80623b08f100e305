"""`python -m ballast_cli`: the same as the console script."""

from ballast_cli.start import run

run()
