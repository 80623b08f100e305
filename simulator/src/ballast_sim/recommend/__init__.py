"""Which fleet layout and which policies for this traffic, on this hardware, under this SLO?

`budget` reads the hardware, `layouts` shortlists by arithmetic, `variants` lists the policies worth a run, `search`
runs and chooses, `manifests` writes the answer as resources.
"""
