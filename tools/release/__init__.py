"""What a release is made of: one version, wheel and sdist, chart, SBOM, image (docs/releasing.md)."""
