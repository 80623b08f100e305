"""The console script `ballast`: the only package that may import all the others."""
