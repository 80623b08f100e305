"""What the operator costs with many ServingPools, and whether it converges after kills; on a real API server.

    python -m bench.operator_load [--pools 50] [--edits 40] [--baseline REF]   make operator-scale
    python -m bench.operator_load --pools 500 --nodes 1000                     the same with KWOK's nodes
    python -m bench.operator_load --kills 100                                  make operator-kills
    python -m bench.operator_load --outages 10 --pools 20                      make operator-outages

etcd and kube-apiserver run without nodes and controllers: a loop of this program makes a pod for each replica and says
that it is ready. With `--nodes` Kubernetes' own controllers and scheduler make and place pods, and KWOK plays kubelets
(built once, two minutes). With a baseline the operator of that commit runs on the same objects right after.
"""

from __future__ import annotations

import argparse
import asyncio

from bench.operator_load.kills import kills
from bench.operator_load.outages import outages
from bench.operator_load.settling import checkouts, scale

LIMIT_S = 900.0


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", type=int, default=50)
    parser.add_argument("--edits", type=int, default=40)
    parser.add_argument("--nodes", type=int, default=0, help="nodes that KWOK plays; 0: neither nodes nor controllers")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds to measure in which nothing changes")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds within which all must be settled")
    parser.add_argument("--baseline", default="", help="a commit to run right after, on the same objects")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--outages", type=int, default=0, help="times to kill the API server, while specs are edited")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.kills:
        asyncio.run(kills(args))
        return
    if args.outages:
        asyncio.run(outages(args))
        return
    with checkouts(args.baseline) as sources:
        asyncio.run(scale(args, sources))


if __name__ == "__main__":
    main()
