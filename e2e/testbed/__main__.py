"""Command line: `python -m testbed build|up|down|status|enter|run|outage|images`."""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from testbed import build, context, images, lifecycle, packages, session
from testbed.errors import TestbedError
from testbed.spec import DEFAULT_NODES, parse_name, parse_nodes

DEFAULT_NAME = os.environ.get("BALLAST_TESTBED_NAME", "dev")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="testbed", description="A real Kubernetes without Docker, for tests.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--name", default=DEFAULT_NAME, help="the cluster's name (default: %(default)s)")
        return command

    add("build", "install Debian packages and build the programs, once (8-12 minutes)")
    start = add("up", "start a cluster and print its KUBECONFIG")
    start.add_argument(
        "--nodes",
        default=DEFAULT_NODES,
        metavar="HARDWARE[:GPUS],...",
        help="one word per node; `none` is a node without label and GPUs (default: %(default)s)",
    )
    add("down", "stop a cluster and remove all that it left, after a crash too")
    add("status", "say whether a cluster is up and what has failed in it")
    add("enter", "open a shell inside the cluster's network")
    away = add("outage", "kill a component, such as kube-apiserver, and start it again later")
    away.add_argument("program", metavar="PROGRAM", help="kube-apiserver, etcd, kube-scheduler, ...")
    away.add_argument("--seconds", type=float, default=10.0, help="until it starts again (default: %(default)s)")
    image = add("images", "build images where out of date and load them into the nodes of a running cluster")
    image.add_argument("names", nargs="*", metavar="IMAGE", help=f"{', '.join(images.IMAGES)} (default: all)")
    add("context", "fill the build context of the Dockerfile and print its folder")
    whole = add("session", "start a cluster of its own, load all images, run a command inside, and stop it again")
    whole.add_argument("--nodes", default=DEFAULT_NODES, metavar="HARDWARE[:GPUS],...", help="as for up")
    whole.add_argument("--no-images", action="store_true", help="load no images: for commands that start no pods")
    whole.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command")
    run = add("run", "run a command inside the cluster's network, with KUBECONFIG set")
    run.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command")
    return parser


def _up(options: argparse.Namespace) -> int:
    entrance = lifecycle.up(options.name, parse_nodes(options.nodes), _say)
    _say("    to enter its network: " + " ".join([*entrance.prefix, "COMMAND"]))
    print(f"export KUBECONFIG={entrance.kubeconfig}")
    print(f"export PATH={entrance.programs}:$PATH")  # kubectl and helm
    return 0


def _status(options: argparse.Namespace) -> int:
    entrance = lifecycle.enter(options.name)
    print(f"KUBECONFIG={entrance.kubeconfig}")
    print("enter: " + " ".join([*entrance.prefix, "COMMAND"]))
    failed = lifecycle.failure(options.name)
    if failed is not None:
        print(f"failed: {failed}")
    subprocess.run(
        [str(entrance.programs / "kubectl"), "get", "nodes", "-L", "serving.ballast.dev/hardware"],
        env={**os.environ, **entrance.environment()},
        check=False,
    )
    return 1 if failed else 0


def _words(argv: Sequence[str]) -> list[str]:
    return [*argv[1:]] if argv[:1] == ["--"] else [*argv]


def _inside(name: str, argv: Sequence[str]) -> int:
    """Become the command, inside; returns only when there is none."""
    words = _words(argv)
    if not words:
        raise TestbedError("run: give a command after --")
    entrance = lifecycle.enter(name)
    environment = {**os.environ, **entrance.environment(), "BALLAST_TESTBED_NAME": name}
    os.execve(entrance.prefix[0], [*entrance.prefix, *words], environment)


def _dispatch(options: argparse.Namespace) -> int:
    parse_name(options.name)
    match options.command:
        case "build":
            packages.install(_say)
            print(build.build(_say))
            build.build(_say, build.LEADER_WORKER_SET)
            return 0
        case "up":
            return _up(options)
        case "down":
            lifecycle.down(options.name, _say)
            return 0
        case "status":
            return _status(options)
        case "images":
            archives = images.build_archives(options.names or list(images.IMAGES), _say)
            images.load(options.name, archives, _say)
            return 0
        case "context":
            print(context.prepare(_say).folder)
            return 0
        case "session":
            names = [] if options.no_images else list(images.IMAGES)
            return session.run(parse_nodes(options.nodes), names, _words(options.argv), _say)
        case "outage":
            lifecycle.outage(options.name, options.program, options.seconds)
            return 0
        case "enter":
            return _inside(options.name, [os.environ.get("SHELL", "/bin/sh")])
        case _:
            return _inside(options.name, options.argv)


def _terminate(number: int, frame: FrameType | None) -> None:
    """A polite end cleans up as Ctrl-C does."""
    del frame
    raise SystemExit(128 + number)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status; errors that the user can act on are one message, without a traceback."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminate)
    try:
        return _dispatch(_parser().parse_args(argv))
    except TestbedError as error:
        _say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
