"""`python -m ballast_gateway.agent`: as `ballast agent`."""

import sys

from ballast_gateway.agent.command import main

sys.exit(main(sys.argv[1:]))
